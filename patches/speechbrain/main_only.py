"""Checkpoints that the main process alone saves need no other rank (0.5.16).

There ``save_checkpoint`` ends the choice of a folder in a broadcast, as every rank calls it at the end of a stage. In
``run_on_main(checkpointer.save_and_keep_only)``, the way of the releases before, only the main process gets to that
broadcast, and the others are in the barrier of ``run_on_main``: a deadlock (speechbrain issue 2401). As in 1.0.0, what
runs on the main process alone broadcasts nothing.

Reached through ``run_on_main`` and ``main_process_only``. A save behind a bare ``if if_main_process():`` cannot be told
from one that every rank does, and stays a deadlock there, also in later releases.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Callable

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site

# Whether the main process runs something that no other rank runs.
ALONE: ContextVar[bool] = ContextVar("ddpfix_speechbrain_main_only", default=False)


def sections(site: Site, module: ModuleType, owner: Any) -> None:
    """What these two are given runs on the main process alone."""
    checks.needs_names(owner, "run_on_main", "if_main_process", "ddp_barrier")
    site.wrap(module, "run_on_main", _run_on_main)
    site.wrap(module, "main_process_only", _main_process_only)


def saves(site: Site, module: ModuleType, owner: Any) -> None:
    """``save_checkpoint`` finds no process group while the main process is alone."""
    checks.needs_names(owner, "save_checkpoint", "broadcast_object_list", "is_initialized")

    def save(wrapped: Any, checkpointer: Any, args: Any, kwargs: Any) -> Any:
        if not ALONE.get():
            return wrapped(*args, **kwargs)
        with temporary.replaced(module, "torch", _without_group(module)):
            return wrapped(*args, **kwargs)

    site.wrap(owner, "save_checkpoint", save)


def _without_group(module: Any) -> Any:
    nothing = temporary.LookAlike(module.torch.distributed, {"is_initialized": lambda: False})
    return temporary.LookAlike(module.torch, {"distributed": nothing})


def _run_on_main(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if args:
        return wrapped(_alone(args[0]), *args[1:], **kwargs)
    return wrapped(**{**kwargs, "func": _alone(kwargs["func"])})


def _main_process_only(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(_alone(*args, **kwargs))


def _alone(function: Any) -> Callable[..., Any]:
    # Whatever can be called, with a name or without one.
    @functools.wraps(function, updated=())
    def alone(*args: Any, **kwargs: Any) -> Any:
        with temporary.assigned(ALONE, True):
            return function(*args, **kwargs)

    return alone
