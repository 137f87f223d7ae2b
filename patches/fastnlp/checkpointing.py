"""Activation checkpointing beside ``find_unused_parameters=True``.

Reentrant checkpointing, torch's default, and the flag exclude each other ("Expected to mark a variable ready only
once"). fastNLP's own BART and CPT leave the kind to that default, and since the flag is there by our default (see
:mod:`.unused`), what a user's code asks for must not fail by it either.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from ddpfix import log, sync
from ddpfix.registry import Site


def not_reentrant(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``torch.utils.checkpoint.checkpoint``."""
    site.often(module, "checkpoint", _checkpoint)


def _checkpoint(stock: Any) -> Callable[..., Any]:
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("use_reentrant") is not False:
            step = sync.current()
            if step is not None and step.replica.flagged:
                if kwargs.get("use_reentrant"):
                    log.warning(
                        "checkpoint(use_reentrant=True) cannot train with find_unused_parameters=True: use_reentrant is"
                        " False in this model. DDPFIX_UNUSED=off leaves both as they are"
                    )
                kwargs["use_reentrant"] = False
        return stock(*args, **kwargs)

    return checkpoint
