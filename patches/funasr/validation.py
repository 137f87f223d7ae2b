"""A validation loss that is not finite on one rank does not put that rank out of step with the others.

``trainer`` 1.1.8 to 1.4.14 averages over ranks only ``if torch.isfinite(loss)``: a rank with a NaN leaves two
collectives out, and its next one meets other ranks' (found by reading, mended in 1.4.15).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Dict, List, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.patching import checks
from ddpfix.patching.site import PatchError, Site

from . import trainers


def averaged(site: Site, module: ModuleType, owner: Any) -> None:
    """For the length of a validation, ``torch.isfinite(loss)`` has the same value in the trainers of all ranks."""
    if "isfinite" not in checks.code_names(owner, "validate_epoch"):
        raise PatchError("validate_epoch no longer asks whether the loss is finite")

    def validate(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if not trainers.sharded(trainer):
            return wrapped(*args, **kwargs)
        average = _Average(trainer)
        model = trainers.epoch_of(wrapped, trainer, args, kwargs).model
        seen = trainers.seen_by(module, "torch", isfinite=average.isfinite)
        with model.register_forward_hook(average.note), seen:
            result = wrapped(*args, **kwargs)
        if average.sums[0]:
            log.warning(
                f"validation: {int(average.sums[0])} batches (all ranks) had a loss that is not finite; not averaged"
            )
        return result

    site.wrap(owner, "validate_epoch", validate)


class _Average:
    """The trainer's own averages while every loss is finite on every rank; otherwise those of the finite ones."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.stats: Dict[str, Any] = {}
        # How many losses were not finite; sum and number of losses; sum and number of accuracies: here, and everywhere.
        self.mine: List[float] = [0.0] * 5
        self.sums: List[float] = [0.0] * 5

    def note(self, model: Any, args: Any, output: Any) -> None:
        self.stats = output[1]

    def isfinite(self, loss: Any) -> bool:
        """Return whether all losses so far, of all ranks, were finite: the trainer then goes on as it is."""
        accuracy = self.stats.get("acc")
        if not bool(torch.isfinite(loss).all()):
            added = [1.0, 0.0, 0.0, 0.0, 0.0]
        else:
            added = [0.0, loss.item(), 1.0, *((0.0, 0.0) if accuracy is None else (accuracy.item(), 1.0))]
        self.mine = [one + other for one, other in zip(self.mine, added)]
        total = torch.tensor(self.mine, dtype=torch.float64, device=loss.device)
        distributed.all_reduce(total)
        self.sums = total.tolist()
        bad, losses, count, accuracies, accuracy_count = self.sums
        if bad:
            self.trainer.val_loss_avg = losses / count if count else float("nan")
            if accuracy_count:
                self.trainer.val_acc_avg = accuracies / accuracy_count
        return not bad
