"""Checkpoints are saved and deleted by all ranks together, or by the main process alone (0.5.16).

From 0.5.16 on every rank runs ``on_stage_end``, and with it ``save_and_keep_only``. There every rank lists the
checkpoints while rank 0 deletes some of them: the others sometimes fail with a ``FileNotFoundError``. 1.0.0 put
barriers around it. Here the other ranks list nothing, as they delete nothing, and wait at the end.

``save_checkpoint`` ends the choice of a folder in a broadcast, as every rank calls it at the end of a stage. In
``run_on_main(checkpointer.save_and_keep_only)``, the way of the releases before, only the main process gets to that
broadcast, and the others are in the barrier of ``run_on_main``: a deadlock (speechbrain issue 2401). As in 1.0.0, what
runs on the main process alone broadcasts nothing.

Reached through ``run_on_main`` and ``main_process_only``. A save behind a bare ``if if_main_process():`` cannot be told
from one that every rank does, and stays a deadlock there, also in later releases.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any, Callable

from torch import distributed

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site

# Whether the main process runs something that no other rank runs.
_ALONE: ContextVar[bool] = ContextVar("ddpfix_speechbrain_main_only", default=False)
_KEEPING: ContextVar[bool] = ContextVar("ddpfix_speechbrain_keeping", default=False)


def one_deletes(site: Site, module: ModuleType, owner: Any) -> None:
    """Within ``save_and_keep_only``, which has a broadcast and so is called on every rank already."""
    checks.needs_names(owner, "save_and_keep_only", "save_checkpoint", "delete_checkpoints")
    checks.needs_names(owner, "save_checkpoint", "broadcast_object_list")
    site.wrap(owner, "save_and_keep_only", _keep)
    site.wrap(owner, "delete_checkpoints", _delete)


def _keep(wrapped: Any, checkpointer: Any, args: Any, kwargs: Any) -> Any:
    if _ALONE.get() or not distributed.is_available() or not distributed.is_initialized():
        return wrapped(*args, **kwargs)
    with temporary.assigned(_KEEPING, True):
        result = wrapped(*args, **kwargs)
    distributed.barrier()
    return result


def _delete(wrapped: Any, checkpointer: Any, args: Any, kwargs: Any) -> Any:
    if not _KEEPING.get() or import_module("speechbrain.utils.distributed").if_main_process():
        return wrapped(*args, **kwargs)
    return None


def sections(site: Site, module: ModuleType, owner: Any) -> None:
    """What these two are given runs on the main process alone."""
    checks.needs_names(owner, "run_on_main", "if_main_process", "ddp_barrier")
    site.wrap(module, "run_on_main", _run_on_main)
    site.wrap(module, "main_process_only", _main_process_only)


def saves(site: Site, module: ModuleType, owner: Any) -> None:
    """``save_checkpoint`` finds no process group while the main process is alone."""
    checks.needs_names(owner, "save_checkpoint", "broadcast_object_list", "is_initialized")

    def save(wrapped: Any, checkpointer: Any, args: Any, kwargs: Any) -> Any:
        if not _ALONE.get():
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
        with temporary.assigned(_ALONE, True):
            return function(*args, **kwargs)

    return alone
