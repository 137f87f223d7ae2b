"""Old checkpoints are deleted while no other rank reads them (0.5.16).

From 0.5.16 on every rank runs ``on_stage_end``, and with it ``save_and_keep_only``. There every rank lists the
checkpoints while rank 0 deletes some of them: the others sometimes fail with a ``FileNotFoundError``. 1.0.0 put
barriers around it. Here the other ranks list nothing, as they delete nothing, and wait at the end.
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import distributed

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site

from . import main_only

_KEEPING: ContextVar[bool] = ContextVar("ddpfix_speechbrain_keeping", default=False)


def one_deletes(site: Site, module: ModuleType, owner: Any) -> None:
    """Within ``save_and_keep_only``, which has a broadcast and so is called on every rank already."""
    checks.needs_names(owner, "save_and_keep_only", "save_checkpoint", "delete_checkpoints")
    checks.needs_names(owner, "save_checkpoint", "broadcast_object_list")
    site.wrap(owner, "save_and_keep_only", _keep)
    site.wrap(owner, "delete_checkpoints", _delete)


def _keep(wrapped: Any, checkpointer: Any, args: Any, kwargs: Any) -> Any:
    if main_only.ALONE.get() or not distributed.is_available() or not distributed.is_initialized():
        return wrapped(*args, **kwargs)
    with temporary.assigned(_KEEPING, True):
        result = wrapped(*args, **kwargs)
    distributed.barrier()
    return result


def _delete(wrapped: Any, checkpointer: Any, args: Any, kwargs: Any) -> Any:
    if not _KEEPING.get() or import_module("speechbrain.utils.distributed").if_main_process():
        return wrapped(*args, **kwargs)
    return None
