"""A frozen extractor stays in the mode in which its constructor left it.

With ``freeze=True`` SpeechBrain's wrappers put their model into eval mode once; ``Brain.fit`` then calls
``self.modules.train()``, and the frozen extractor drops layers and features in training (speechbrain issue 2340).
Before 0.5.11 its parameters also stay trainable, and DDP wraps what no backward pass will ever reach.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Iterator, List, MutableMapping, Tuple
from weakref import WeakKeyDictionary

from ddpfix import log
from ddpfix.patching.site import Site


def keep_eval_mode(site: Site, module: ModuleType, owner: Any) -> None:
    """Look for frozen extractors when a Brain wraps its modules; nothing of them is changed but their mode."""
    # The hook of each extractor.
    hooked: MutableMapping[Any, Any] = WeakKeyDictionary()
    site.wrap(owner, "_wrap_distributed", functools.partial(_wrapped, hooked))
    site.at_undo(functools.partial(_let_go, hooked))


def parameters(site: Site, module: ModuleType, owner: Any) -> None:
    """Freeze what ``freeze=True`` leaves trainable, although the wrapper runs it without gradients."""
    site.wrap(owner, "_wrap_distributed", _frozen_first)


def _frozen_first(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    for _, extractor in _extractors(instance.modules):
        extractor.requires_grad_(False)
    return wrapped(*args, **kwargs)


def _wrapped(hooked: MutableMapping[Any, Any], wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    for name, extractor in _extractors(instance.modules):
        parts = [part for part in extractor.children() if _left_in_eval(part)]
        if parts and extractor not in hooked:
            hooked[extractor] = extractor.register_forward_pre_hook(_Eval(parts))
            log.info(f"{name} is frozen and stays in eval mode (no LayerDrop, no dropout), as its constructor sets it")
    return wrapped(*args, **kwargs)


def _extractors(modules: Any) -> Iterator[Tuple[str, Any]]:
    """(name, wrapper) of every wrapper of SpeechBrain that was made with ``freeze=True``."""
    for name, module in modules.named_modules():
        ours = any(level.__module__.startswith("speechbrain.") for level in type(module).__mro__)
        if ours and getattr(module, "freeze", None) is True:
            yield name, module


def _left_in_eval(part: Any) -> bool:
    """Whether the constructor put it into eval mode; what has trainable parameters (an adapter) is not frozen."""
    parameters = list(part.parameters())
    return bool(parameters) and not part.training and not any(p.requires_grad for p in parameters)


class _Eval:
    """Puts the parts of a frozen wrapper back into eval mode before it runs. A class, so that it can be pickled."""

    def __init__(self, parts: List[Any]) -> None:
        self.parts = parts

    def __call__(self, module: Any, args: Any) -> None:
        for part in self.parts:
            if part.training:
                part.eval()


def _let_go(hooked: MutableMapping[Any, Any]) -> None:
    for handle in list(hooked.values()):
        handle.remove()
    hooked.clear()
