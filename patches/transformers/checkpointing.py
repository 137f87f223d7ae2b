"""Activation checkpointing that works with unused parameters.

Reentrant checkpointing and ``find_unused_parameters=True`` exclude each other ("Expected to mark a variable ready only
once"), so with active LayerDrop under DDP only the non-reentrant kind can train. WavLM with reentrant checkpointing
never ends its backward on recent releases, even on one process: its position bias reaches each layer by keyword, stays
attached, and every recomputation runs backward through the ones before it.
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
    found = _reentrant_modules(model)
    if found and draws.active(model):
        _make_non_reentrant(found)
        log.info(
            "gradient checkpointing is now non-reentrant (use_reentrant=False): the reentrant kind cannot train a model"
            " that skips layers under DDP"
        )


def _switched(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    found = [module for module in _reentrant_modules(instance) if type(module).__name__.startswith("WavLM")]
    if found:
        _make_non_reentrant(found)
        log.info("WavLM with reentrant gradient checkpointing never ends its backward: use_reentrant=False is used")
    return result


def _default(stock: Any) -> Callable[..., Any]:
    """Releases before 4.35 leave ``use_reentrant`` to torch's default: in a model that skips layers it is False."""

    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        step = sync.current()
        if "use_reentrant" not in kwargs and step is not None and step.replica.skips:
            kwargs["use_reentrant"] = False
        return stock(*args, **kwargs)

    return checkpoint
