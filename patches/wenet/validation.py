"""A validation with different numbers of batches on the ranks (2.0.0 to main; issue 842).

A model that has once been trained under ``model.join`` reduces in every later forward, also in evaluation, and one
with buffers (BatchNorm, global CMVN) broadcasts them in each. Validation has no gradients to share, so each rank runs
the bare model, after one broadcast of rank 0's buffers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Dict, Tuple

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpfix.patching.site import PatchError, Site


def without_ddp(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``Executor.cv``, whose first argument is the model."""

    def cv(wrapped: Any, executor: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        model = args[0] if args else kwargs.get("model")
        if not isinstance(model, DistributedDataParallel):
            return wrapped(*args, **kwargs)
        model.eval()
        share_buffers(model)
        if args:
            return wrapped(model.module, *args[1:], **kwargs)
        return wrapped(*args, **{**kwargs, "model": model.module})

    if not hasattr(owner, "cv"):
        raise PatchError(f"{owner.__qualname__} has no cv")
    site.wrap(owner, "cv", cv)


def share_buffers(model: Any) -> None:
    """Rank 0's buffers on all ranks, where DDP would broadcast them in the first forward."""
    # Its name since torch 2.13, where the old one warns.
    synced = model.forward_sync_buffers if hasattr(model, "forward_sync_buffers") else model.broadcast_buffers
    if not synced:
        return
    ignored = getattr(model, "parameters_to_ignore", ())
    for name, buffer in model.module.named_buffers():
        if name not in ignored:
            distributed.broadcast(buffer, distributed.get_global_rank(model.process_group, 0), model.process_group)
