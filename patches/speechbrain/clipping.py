"""Gradients are clipped after backward, before the step (0.5.15 and 0.5.16).

There ``fit_batch`` calls ``check_gradients``, which clips, before backward: there is nothing to clip yet, or only the
earlier micro-batches of a window, and ``max_grad_norm`` has no effect.

Reached through ``Brain.fit_batch``: recipes that override it clip as they say.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Callable, Optional

import torch

from ddpfix.patching import checks, temporary
from ddpfix.patching.site import Site

# The Brain whose own fit_batch runs: a recipe's calls check_gradients after backward, where clipping is right.
_RUNNING: ContextVar[Optional[Any]] = ContextVar("ddpfix_speechbrain_fit_batch", default=None)


def after_backward(site: Site, module: ModuleType, owner: Any) -> None:
    """While ``fit_batch`` runs, ``check_gradients`` judges the loss only, and ``optimizer.step`` clips first."""
    checks.needs_names(owner, "fit_batch", "check_gradients", "optimizer", "backward")
    checks.needs_names(owner, "check_gradients", "max_grad_norm", "clip_grad_norm_")
    site.wrap_hot(owner, "fit_batch", _fit_batch)
    site.wrap_hot(owner, "check_gradients", _check_gradients)


def _fit_batch(original: Any) -> Callable[..., Any]:
    def fit_batch(self: Any, batch: Any) -> Any:
        clipped = temporary.replaced(self.optimizer, "step", _clipped(self, self.optimizer.step))
        with temporary.assigned(_RUNNING, self), clipped:
            return original(self, batch)

    return fit_batch


def _check_gradients(original: Any) -> Callable[..., Any]:
    def check_gradients(self: Any, loss: Any) -> Any:
        if _RUNNING.get() is not self:
            return original(self, loss)
        with temporary.replaced(self, "max_grad_norm", 0.0):
            return original(self, loss)

    return check_gradients


def _clipped(brain: Any, step: Any) -> Callable[..., Any]:
    """Return the optimizer's step, which a scaler calls after it has unscaled the gradients, if none is infinite."""

    @functools.wraps(step)
    def clipped(*args: Any, **kwargs: Any) -> Any:
        if brain.max_grad_norm > 0.0:
            torch.nn.utils.clip_grad_norm_(brain.modules.parameters(), brain.max_grad_norm)
        return step(*args, **kwargs)

    return clipped
