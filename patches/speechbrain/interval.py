"""Checkpoints within an epoch make no rank wait for another one (before 0.5.11).

With ``ckpt_interval_minutes`` every rank looks at its own clock after each batch, and goes to
``run_on_main(self._save_intra_epoch_ckpt)`` when the time is up, which ends in a barrier. Near the end of an interval
some ranks go there while the others go on to the next batch: a barrier then meets a reduction of gradients, and
training hangs (speechbrain issue 1166). Here the main process saves by its own clock, and nobody waits for it, as
from 0.5.11 on.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from ddpfix.patching import checks
from ddpfix.patching.site import Site

_SAVE = "_save_intra_epoch_ckpt"


def without_barrier(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``run_on_main``, through which ``Brain.fit`` saves."""
    checks.needs_names(owner, "run_on_main", "if_main_process", "ddp_barrier")
    site.wrap(module, "run_on_main", _run_on_main)


def _run_on_main(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if not _saves_within_an_epoch(*args, **kwargs):
        return wrapped(*args, **kwargs)
    # What is saved holds no collective: only the main process gets there in any of these releases.
    if import_module("speechbrain.utils.distributed").if_main_process():
        (args[0] if args else kwargs["func"])()
    return None


def _saves_within_an_epoch(func: Any = None, *args: Any, **kwargs: Any) -> bool:
    """Return whether this is the call of the training loop, which hands over a Brain's method and nothing else."""
    return not args and not kwargs and getattr(func, "__name__", "") == _SAVE and hasattr(func, "__self__")
