"""What a rank without a batch trains on: a batch that it has had, with gradients that are zero.

To DDP such a rank is like any other, so that steps, learning rates, optimizer states and validations stay equal on all
ranks. What the others get is the sum of their gradients over the number of all ranks, as under ``model.join``.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Optional

import torch

from ddpfix.patching import temporary

from ..torch.internals.tensors import is_norm


class Filler:
    """The smallest batch of this epoch so far, for a model under DDP."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.size = -1
        self.kept: Any = None
        # What is in force while this rank's gradients are zero.
        self.silence: Optional[contextlib.ExitStack] = None

    def keep(self, batch: Any) -> None:
        """Called with each batch that is trained on; the smallest one costs least."""
        size = _elements(batch)
        if self.kept is None or size < self.size:
            self.size, self.kept = size, batch

    def batch(self) -> Any:
        """Return the batch; from the first one on until :meth:`end`, this rank's gradients are zero."""
        if self.silence is None:
            self.silence = contextlib.ExitStack()
            self._begin(self.silence)
        return dict(self.kept) if isinstance(self.kept, dict) else self.kept

    def _begin(self, stack: contextlib.ExitStack) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                # Before DDP sees it, and also where a loss is not finite (zero times infinity would not be zero).
                stack.enter_context(parameter.register_hook(torch.zeros_like))
        for module in self.model.modules():
            if is_norm(module) and module.track_running_stats:
                # Rank 0's statistics become those of the others: they are not to become those of this one batch.
                stack.enter_context(temporary.replaced(module, "momentum", 0.0))

    def end(self) -> None:
        """The rank has gradients again, from the next epoch on."""
        if self.silence is not None:
            self.silence.close()
        self.silence = self.kept = None


def _elements(batch: Any) -> int:
    parts: Iterable[Any] = batch.values() if isinstance(batch, dict) else batch
    return sum(part.numel() for part in parts if isinstance(part, torch.Tensor))
