"""A frozen extractor stays in the mode in which its constructor left it.

With ``freeze=True`` SpeechBrain's wrappers put their model into eval mode once; ``Brain.fit`` then calls
``self.modules.train()``, and the frozen extractor drops layers and features in training (speechbrain issue 2340).
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Iterator, List, MutableMapping, Tuple
from weakref import WeakKeyDictionary

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.user_code import module_of

# The parts of each frozen extractor that its constructor left in eval mode.
Frozen = MutableMapping[Any, List[Any]]


def keep_eval_mode(site: Site, module: ModuleType, owner: Any) -> None:
    """Find frozen extractors when a Brain wraps its modules; nothing of them is changed but their mode."""
    frozen: Frozen = WeakKeyDictionary()
    site.wrap(owner, "_wrap_distributed", functools.partial(_wrapped, site, frozen))
    site.at_undo(frozen.clear)


def _wrapped(site: Site, frozen: Frozen, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    for name, extractor in _extractors(instance.modules):
        parts = [part for part in extractor.children() if _left_in_eval(part)]
        if parts and extractor not in frozen:
            # A hook on the extractor would be saved with it, so its class calls back.
            if not any(record.owner is type(extractor) for record in site.records):
                site.wrap(type(extractor), "forward", functools.partial(_in_eval_mode, frozen))
            frozen[extractor] = parts
            log.info(f"{name} is frozen, so ddpfix keeps it in eval mode: no LayerDrop, no dropout")
    return wrapped(*args, **kwargs)


def _in_eval_mode(frozen: Frozen, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    for part in frozen.get(instance, ()):
        if part.training:
            part.eval()
    return wrapped(*args, **kwargs)


def _extractors(modules: Any) -> Iterator[Tuple[str, Any]]:
    """(name, wrapper) of every wrapper of SpeechBrain that was made with ``freeze=True``."""
    for name, module in modules.named_modules():
        ours = any(module_of(level).startswith("speechbrain.") for level in type(module).__mro__)
        if ours and getattr(module, "freeze", None) is True:
            yield name, module


def _left_in_eval(part: Any) -> bool:
    """Return whether the constructor put it into eval mode; with trainable parameters (an adapter) it is not frozen."""
    parameters = list(part.parameters())
    return bool(parameters) and not part.training and not any(p.requires_grad for p in parameters)
