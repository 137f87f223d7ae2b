"""Gradients are clipped after backward, before the step, and all of them.

0.5.15 and 0.5.16 call ``check_gradients``, which clips, before backward: there is nothing to clip yet, or only the
earlier micro-batches of a window, and ``max_grad_norm`` has no effect. From 1.0.0 on an optimizer's first group of
parameters is clipped only; ``remove_vector_weight_decay`` makes two.

Reached through ``Brain.fit_batch`` and ``Brain.optimizers_step``: recipes that override them clip as they say.
"""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Callable, Iterator, List, Optional

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


def all_groups(site: Site, module: ModuleType, owner: Any) -> None:
    """``optimizers_step`` clips all parameters of an optimizer by their one norm."""
    checks.needs_names(owner, "optimizers_step", "clip_grad_norm_", "param_groups", "scaler", "step")

    def make(original: Any) -> Callable[..., Any]:
        def optimizers_step(self: Any) -> Any:
            several_groups = [optimizer for optimizer in _optimizers(self) if len(optimizer.param_groups) > 1]
            if not several_groups:
                return original(self)
            with _one_group(self.scaler, several_groups):
                return original(self)

        return optimizers_step

    site.wrap_hot(owner, "optimizers_step", make)


def _optimizers(brain: Any) -> List[Any]:
    if brain.optimizers_dict is not None:
        return list(brain.optimizers_dict.values())
    return [brain.optimizer] if brain.opt_class is not None else []


@contextlib.contextmanager
def _one_group(scaler: Any, optimizers: List[Any]) -> Iterator[None]:
    """Until the scaler steps, each optimizer shows one group with all of its parameters."""
    original = scaler.step
    with contextlib.ExitStack() as shown:

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            shown.close()
            return original(*args, **kwargs)

        for optimizer in optimizers:
            was = optimizer.param_groups
            one = [{**was[0], "params": [p for group in was for p in group["params"]]}]
            shown.enter_context(temporary.replaced(optimizer, "param_groups", one))
        with temporary.replaced(scaler, "step", step):
            yield
