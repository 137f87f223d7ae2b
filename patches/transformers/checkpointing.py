"""Activation checkpointing that works with unused parameters.

Reentrant checkpointing and ``find_unused_parameters=True`` exclude each other ("Expected to mark a variable ready only
once"). Under DDP the flag is left out then, where the reduction can be finalized after backward (``torch.finalize``); a
model that has the flag all the same, or whose layers are sharded, gets the non-reentrant kind when it is wrapped.
WavLM with reentrant checkpointing never ends its backward on recent releases, even on one process: its position bias
reaches each layer by keyword, stays attached, and every recomputation runs backward through the ones before it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, List

from ddpfix import log
from ddpfix.models import internals, wrap_hooks
from ddpfix.patching.site import Site

_FUNCTION = "_gradient_checkpointing_func"


def reentrant(site: Site, module: ModuleType, owner: Any) -> None:
    """Choose the non-reentrant kind for WavLM, when checkpointing is switched on."""
    site.wrap(owner, "_set_gradient_checkpointing", _switched)


def reentrant_at_wrap(site: Site, module: ModuleType, owner: Any) -> None:
    """Choose the non-reentrant kind where DDP has the flag."""
    wrap_hooks.not_reentrant(site, _flagged)
    wrap_hooks.excludes(site, _excluded)


def is_reentrant(function: Any) -> bool:
    """Return whether a checkpoint function that transformers keeps on a module is of the reentrant kind."""
    return isinstance(function, functools.partial) and function.keywords.get("use_reentrant", True) is not False


def _make_non_reentrant(modules: List[Any]) -> None:
    for module in modules:
        function = getattr(module, _FUNCTION)
        keywords = {**function.keywords, "use_reentrant": False}
        setattr(module, _FUNCTION, functools.partial(function.func, *function.args, **keywords))


def _reentrant_modules(model: Any) -> List[Any]:
    return [
        module
        for _, module in internals.named_modules(model)
        if is_reentrant(vars(module).get(_FUNCTION)) and getattr(module, "gradient_checkpointing", False)
    ]


def _excluded(model: Any) -> str:
    modules = _reentrant_modules(model)
    # WavLM may never end its backward with the reentrant kind.
    if not modules or any(type(module).__name__.startswith("WavLM") for module in modules):
        return ""
    return f"reentrant gradient checkpointing of {type(modules[0]).__name__}"


def _flagged(model: Any) -> None:
    modules = _reentrant_modules(model)
    if modules:
        _make_non_reentrant(modules)
        log.info(
            "gradient checkpointing now uses use_reentrant=False: the reentrant kind fails with"
            " find_unused_parameters=True, and under FSDP with LayerDrop"
        )
    unknown = [module for _, module in internals.named_modules(model) if _of_unknown_kind(module)]
    if unknown:
        log.warning(
            f"{type(unknown[0]).__name__} has its own checkpoint function. With find_unused_parameters=True it must be"
            " non-reentrant (torch's with use_reentrant=False), or backward raises 'Expected to mark a variable ready"
            " only once'"
        )


def _of_unknown_kind(module: Any) -> bool:
    """Return whether checkpointing is on with a function whose kind cannot be determined."""
    function = vars(module).get(_FUNCTION)
    known = function is None or isinstance(function, functools.partial)
    return bool(getattr(module, "gradient_checkpointing", False)) and not known


def _switched(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    modules = [module for module in _reentrant_modules(instance) if type(module).__name__.startswith("WavLM")]
    if modules:
        _make_non_reentrant(modules)
        log.info("WavLM now checkpoints with use_reentrant=False: its backward never ends with the reentrant kind")
    return result
