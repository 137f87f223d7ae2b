"""Activation checkpointing that works with unused parameters.

Reentrant checkpointing and ``find_unused_parameters=True`` exclude each other ("Expected to mark a variable ready only
once"), so with active LayerDrop under DDP, or any other reason for the flag, only the non-reentrant kind can train.
WavLM with reentrant checkpointing never ends its backward on recent releases, even on one process: its position bias
reaches each layer by keyword, stays attached, and every recomputation runs backward through the ones before it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable, List

from ddpfix import draws, log, sync, wrapping
from ddpfix.registry import Site

_FUNCTION = "_gradient_checkpointing_func"


def reentrant(site: Site, module: ModuleType, owner: Any) -> None:
    """Choose the non-reentrant kind: for WavLM when checkpointing is switched on, for LayerDrop when DDP wraps."""
    if module.__name__ == "torch.utils.checkpoint":
        site.often(module, "checkpoint", _default)
        return
    wrapping.before(site, _before_ddp)
    wrapping.with_flag(site, _flagged)
    if owner is not None and module.__name__.startswith("transformers"):
        site.once(owner, "_set_gradient_checkpointing", _switched)


def is_reentrant(function: Any) -> bool:
    """Whether a checkpoint function that transformers keeps on a module is of the reentrant kind (torch's default)."""
    return isinstance(function, functools.partial) and function.keywords.get("use_reentrant", True) is not False


def _make_non_reentrant(modules: List[Any]) -> None:
    for module in modules:
        stock = getattr(module, _FUNCTION)
        keywords = {**stock.keywords, "use_reentrant": False}
        setattr(module, _FUNCTION, functools.partial(stock.func, *stock.args, **keywords))


def _reentrant_modules(model: Any) -> List[Any]:
    return [
        module
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) and is_reentrant(vars(module).get(_FUNCTION))
    ]


def _before_ddp(model: Any) -> None:
    if draws.active(model):
        _flagged(model)


def _flagged(model: Any) -> None:
    found = _reentrant_modules(model)
    if found:
        _make_non_reentrant(found)
        log.info(
            "gradient checkpointing is now non-reentrant (use_reentrant=False): the reentrant kind cannot train a model"
            " that skips layers, or whose unused parameters DDP looks for"
        )
    unknown = [module for module in model.modules() if _by_another(module)]
    if unknown:
        log.warning(
            f"{type(unknown[0]).__name__} checkpoints by a function of its own: with find_unused_parameters=True it has"
            " to be of the non-reentrant kind (torch.utils.checkpoint with use_reentrant=False), or the first backward"
            " raises 'Expected to mark a variable ready only once'"
        )


def _by_another(module: Any) -> bool:
    """Whether checkpointing is on with a function that does not tell its kind."""
    function = vars(module).get(_FUNCTION)
    known = function is None or isinstance(function, functools.partial)
    return bool(getattr(module, "gradient_checkpointing", False)) and not known


def _switched(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    found = [module for module in _reentrant_modules(instance) if type(module).__name__.startswith("WavLM")]
    if found:
        _make_non_reentrant(found)
        log.info("WavLM with reentrant gradient checkpointing never ends its backward: use_reentrant=False is used")
    return result


def _default(stock: Any) -> Callable[..., Any]:
    """Releases before 4.35 leave ``use_reentrant`` to torch's default: where DDP has the flag it is False."""

    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        step = sync.current()
        if "use_reentrant" not in kwargs and step is not None and step.replica.flagged:
            kwargs["use_reentrant"] = False
        return stock(*args, **kwargs)

    return checkpoint
