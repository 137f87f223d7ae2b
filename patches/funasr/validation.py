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
        average.report()
        return result

    site.wrap(owner, "validate_epoch", validate)


class _Average:
    """The trainer's own averages while every loss is finite on every rank; otherwise those of the finite ones."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.stats: Dict[str, Any] = {}
        # How many losses were not finite here; sum and number of losses; sum and number of accuracies.
        self.mine: List[float] = [0.0] * 5
        self.left_out = 0

    def note(self, model: Any, args: Any, output: Any) -> None:
        self.stats = output[1]

    def isfinite(self, loss: Any) -> bool:
        """Return whether all losses so far, of all ranks, were finite: the trainer then goes on as it is."""
        self._add(loss)
        total = torch.tensor(self.mine, dtype=torch.float64, device=loss.device)
        distributed.all_reduce(total)
        bad, *sums = total.tolist()
        self.left_out = int(bad)
        if bad:
            self.trainer.val_loss_avg = _mean(*sums[:2])
            if sums[3]:
                self.trainer.val_acc_avg = _mean(*sums[2:])
        return not bad

    def _add(self, loss: Any) -> None:
        if not bool(torch.isfinite(loss).all()):
            self.mine[0] += 1
            return
        self.mine[1] += loss.item()
        self.mine[2] += 1
        accuracy = self.stats.get("acc")
        if accuracy is not None:
            self.mine[3] += accuracy.item()
            self.mine[4] += 1

    def report(self) -> None:
        if self.left_out:
            log.warning(f"validation: {self.left_out} batches (all ranks) had a loss that is not finite; not averaged")


def _mean(total: float, count: float) -> float:
    return total / count if count else float("nan")
