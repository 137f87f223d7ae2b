"""``find_unused_parameters`` where gradient checkpointing is on.

WeNet gives DDP ``not grad_ckpt``, because reentrant checkpointing and the flag exclude each other. From 3.1.0 on its
checkpoints are of the other kind, and False only makes a model fail that leaves parameters out (``ctc_weight: 1.0``
leaves out the decoder, stochastic depth some layer). Before, the flag and the other kind belong together.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch.utils.checkpoint

from ddpfix.models import wrap_hooks
from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError, Site

# Whether WeNet is about to wrap a model that it gives the flag's False, which is no wish of the user's.
_SWITCHED_OFF: ContextVar[bool] = ContextVar("ddpfix_wenet_switched_off", default=False)


def flag(site: Site, module: ModuleType, owner: Any) -> None:
    """Have DDP look for unused parameters although checkpointing is on (3.1.0 and later)."""
    site.wrap(module, "wrap_cuda_model", _wrapped)
    wrap_hooks.needs_flag(site, _why)


def both(site: Site, module: ModuleType, owner: Any) -> None:
    """Checkpoints that agree with the flag (3.0.0 and 3.0.1)."""
    original = getattr(module, "ckpt", None)
    if original is not torch.utils.checkpoint:
        raise PatchError(f"{module.__name__}.ckpt is no longer torch.utils.checkpoint")
    if "use_reentrant" not in inspect.signature(original.checkpoint).parameters:
        raise PatchError("this torch has only reentrant checkpoints, which fail with find_unused_parameters=True")
    # Set by hand: other modules hold torch's own module under a name of theirs, and keep it.
    kind = functools.partial(original.checkpoint, use_reentrant=False)
    vars(module)["ckpt"] = temporary.LookAlike(original, {"checkpoint": kind})
    site.at_undo(functools.partial(vars(module).__setitem__, "ckpt", original))


def _wrapped(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    encoder = getattr(given["model"], "encoder", None)
    if not getattr(encoder, "gradient_checkpointing", False):
        return wrapped(*args, **kwargs)
    with temporary.assigned(_SWITCHED_OFF, True), wrap_hooks.user_chose(None):
        return wrapped(*args, **kwargs)


def _why(model: Any) -> str:
    if not _SWITCHED_OFF.get():
        return ""
    return "with gradient checkpointing WeNet switches it off, and DDP fails on a part that the loss does not use"
