"""``find_unused_parameters`` where gradient checkpointing is on.

WeNet gives DDP ``not grad_ckpt``, because reentrant checkpointing and the flag exclude each other. That False is no
wish of the user's, and a model that leaves parameters out fails with it (``ctc_weight: 1.0`` leaves out the decoder,
stochastic depth some layer): ``torch.finalize`` trains it, with the kind of checkpoints that 3.1.0 and later have.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch.utils.checkpoint

from ddpfix.models import wrap_hooks
from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError, Site


def flag(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``wrap_cuda_model`` (3.0.0 and later)."""
    site.wrap(module, "wrap_cuda_model", _wrapped)


def both(site: Site, module: ModuleType, owner: Any) -> None:
    """Checkpoints that are not reentrant (3.0.0 and 3.0.1)."""
    original = getattr(module, "ckpt", None)
    if original is not torch.utils.checkpoint:
        raise PatchError(f"{module.__name__}.ckpt is no longer torch.utils.checkpoint")
    # Set by hand: other modules hold torch's own module under a name of theirs, and keep it.
    kind = functools.partial(original.checkpoint, use_reentrant=False)
    vars(module)["ckpt"] = temporary.LookAlike(original, {"checkpoint": kind})
    site.at_undo(functools.partial(vars(module).__setitem__, "ckpt", original))


def _wrapped(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    model = inspect.signature(wrapped).bind(*args, **kwargs).arguments["model"]
    if not getattr(getattr(model, "encoder", None), "gradient_checkpointing", False):
        return wrapped(*args, **kwargs)
    with wrap_hooks.user_chose(None):
        return wrapped(*args, **kwargs)
