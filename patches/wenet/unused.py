"""``find_unused_parameters`` where gradient checkpointing is on.

WeNet gives DDP ``not grad_ckpt``, because reentrant checkpointing and the flag exclude each other. That False is no
wish of the user's, and a model that leaves parameters out fails with it (``ctc_weight: 1.0`` leaves out the decoder,
stochastic depth some layer): ``torch.finalize`` trains it, with either kind of checkpoints.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site


def flag(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``wrap_cuda_model`` (3.0.0 and later)."""
    site.wrap(module, "wrap_cuda_model", _wrapped)


def _wrapped(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    model = inspect.signature(wrapped).bind(*args, **kwargs).arguments["model"]
    if not getattr(getattr(model, "encoder", None), "gradient_checkpointing", False):
        return wrapped(*args, **kwargs)
    with wrap_hooks.user_chose(None):
        return wrapped(*args, **kwargs)
