"""LayerDrop (Fan et al., arXiv 1909.11556): every rank skips the same layers, or none does.

All families draw one number a layer in their own forward. Which class draws, where its rate is, and which generator
it uses is read from the code of the installed release, so a family that appears later is covered as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Tuple

from ddpfix import draws, log, wrapping
from ddpfix.registry import PatchError, Site


def sync(site: Site, module: ModuleType, owner: Any) -> bool:
    """Rank-synchronous decisions in the training forwards of wrapped models."""
    return _everywhere(site, module, owner, draws.shared_call)


def off(site: Site, module: ModuleType, owner: Any) -> bool:
    """No layer is skipped, whatever rate a config or a module holds."""
    return _everywhere(site, module, owner, _never)


def _never(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> draws.Call:
    return draws.Call(None, never=True)


def _everywhere(site: Site, module: ModuleType, owner: Any, choose: Callable[..., Any]) -> bool:
    if owner is not None:
        # The target is DDP or FSDP: classes that no module of transformers defines are found when a model is wrapped.
        wrapping.before(site, lambda model: _cover(site, _in_model(model), choose))
        return False
    return _cover(site, _in_module(module), choose)


def _in_module(module: ModuleType) -> Iterator[type]:
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value


def _in_model(model: Any) -> List[type]:
    """The classes whose methods the modules of a model may run: user subclasses and remote code are among them."""
    levels = (level for module in model.modules() for level in type(module).__mro__)
    return list(dict.fromkeys(levels))


def _cover(site: Site, classes: Any, choose: Callable[..., Any]) -> bool:
    done = False
    for owner in classes:
        if owner in draws.COVERED or draws.drawing_method(owner) is None:
            continue
        try:
            draws.cover(site, owner, choose, never=choose is _never)
            done = True
        except PatchError as error:
            log.warning(f"{owner.__module__}.{owner.__qualname__} skips layers, and ranks may disagree: {error}")
    return done
