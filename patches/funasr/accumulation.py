"""With ``accum_grad`` above 1, every optimizer step is taken on gradients that all ranks have averaged.

Unpatched FunASR synchronises in the first micro-batch of a window and steps after the last one, whose gradient
therefore stays each rank's own: the replicas diverge from the first step on, in silence (FunASR pull request 3472
mended ``trainer_ds`` in 1.4.2; ``trainer`` has the fault in every release). Since ranks then hold different gradients,
a norm that is not finite on one rank only sends that rank past a barrier at which the others wait.

Unchanged stay two things: micro-batches after the last whole window of an epoch (or data slice) are dropped when the
next one begins with ``zero_grad``, from 1.0.18 on; FSDP's ``no_sync``.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any, Dict, Iterator, Optional, Tuple

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import PatchError, Site

from . import trainers

_SYNC = "require_backward_grad_sync"


def windows(site: Site, module: ModuleType, owner: Any) -> None:
    """For the length of an epoch, decide at each forward of the wrapped model whether its backward synchronises."""
    name = trainers.method(owner, "train_epoch")
    if "no_sync" not in checks.code_names(owner, name):
        raise PatchError(f"{owner.__qualname__}.{name} no longer uses no_sync")

    def epoch(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        model = trainers.epoch_of(wrapped, trainer, args, kwargs).model
        accum_grad = _accum_grad(trainer)
        if accum_grad == 1 or not _is_ddp(model):
            return wrapped(*args, **kwargs)
        trainers.report(
            trainer, f"accum_grad={accum_grad}: gradients are averaged over all ranks before each optimizer step"
        )
        with _synchronised(model, accum_grad, _last(trainer, name)):
            return wrapped(*args, **kwargs)

    site.wrap(owner, name, epoch)


def _is_ddp(model: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


def _accum_grad(trainer: Any) -> Any:
    held = getattr(trainer, "kwargs", {})
    return trainer.accum_grad if hasattr(trainer, "accum_grad") else held.get("accum_grad", 1)


def _last(trainer: Any, name: str) -> Optional[int]:
    """Before 1.0.18 the last batch of an epoch ends a window, too: its number, counted from 1."""
    return len(trainer.dataloader_train) if name.startswith("_") else None


@contextlib.contextmanager
def _synchronised(model: Any, accum_grad: Any, last: Optional[int]) -> Iterator[None]:
    done = 0

    def before_forward(module: Any, args: Any) -> None:
        nonlocal done
        # A validation in the midst of an epoch is no micro-batch.
        if module.training:
            done += 1
            module.require_backward_grad_sync = done % accum_grad == 0 or done == last

    with contextlib.ExitStack() as stack:
        stack.enter_context(temporary.replaced(model, _SYNC, getattr(model, _SYNC)))
        # The trainer's own no_sync, in the wrong micro-batches, has to do nothing.
        stack.enter_context(temporary.replaced(model, "no_sync", contextlib.nullcontext))
        stack.enter_context(model.register_forward_pre_hook(before_forward))
        yield
