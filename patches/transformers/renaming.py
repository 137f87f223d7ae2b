"""Trainer's checkpoints on several ranks are written where they stay (4.36.0).

``Trainer._save_checkpoint`` writes into ``tmp-checkpoint-N`` there, and then every rank renames this one folder: the
first to do so takes it away from the others, which may be writing (transformers issue 27925). A rank that comes late
finds no folder, or makes it anew and cannot rename it. Ranks write into ``checkpoint-N`` itself here, as they did up to
4.35, and there is nothing to rename. One process alone stages and renames as it did.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site

_STAGED = "tmp-checkpoint-"


def in_place(site: Site, module: ModuleType, owner: Any) -> None:
    """While a Trainer of several ranks saves, its module joins no path that is only staged."""
    checks.needs_names(owner, "_save_checkpoint", "os", "path", "join", "rename", "tmp-")

    def save(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if trainer.args.world_size == 1:
            return wrapped(*args, **kwargs)
        with temporary.replaced(module, "os", _without_staging()):
            return wrapped(*args, **kwargs)

    site.wrap(owner, "_save_checkpoint", save)


def _without_staging() -> Any:
    return temporary.LookAlike(os, {"path": temporary.LookAlike(os.path, {"join": _join})})


def _join(path: Any, *parts: Any) -> Any:
    """``os.path.join``, of a checkpoint's own folder instead of the staged one."""
    final = [part[len("tmp-") :] if str(part).startswith(_STAGED) else part for part in parts]
    return os.path.join(path, *final)
