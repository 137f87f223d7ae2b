"""A loss that is not finite on one rank contributes nothing there, and all ranks take the same steps (before 1.0.0).

SpeechBrain means to ignore such a batch. In 0.5.15 and 0.5.16 the rank skips its backward: the other ranks' gradients
are then averaged with those of its *next* batch, without a word, and the epoch ends in a hang. Before, the backward is
done, the NaN reaches every rank, and only the rank that saw it leaves the step out.

Here the rank does its backward, so that it takes part in the reduction, with a gradient of zero for each parameter, and
steps with the others. SpeechBrain counts and warns as ever, and raises when its patience is at an end. A batch that is
not finite on any rank takes a step with gradients of zero, in which momentum and weight decay act. One process alone,
and several under DataParallel, do what they did.

Reached through what computes the loss and what judges it (``compute_objectives``, ``check_gradients``), so recipes
with a ``fit_batch`` of their own are covered, as far as their loss is one number from ``compute_objectives``.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any, Callable, List, MutableMapping
from weakref import WeakKeyDictionary

import torch

from ddpfix import log
from ddpfix.patching import checks
from ddpfix.patching.site import Site

from . import brains

# Brains whose last training loss was not finite, with the hooks on their parameters.
Muted = MutableMapping[Any, List[Any]]


def contribute_nothing(site: Site, module: ModuleType, owner: Any) -> None:
    """Watch ``compute_objectives`` of every class that is trained under DDP, and ``check_gradients`` of Brain."""
    checks.needs_names(owner, "check_gradients", "isfinite", "nonfinite_count")
    done: List[Any] = []
    muted: Muted = WeakKeyDictionary()

    def wrap(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
        kind = next(level for level in type(brain).__mro__ if "compute_objectives" in vars(level))
        if kind is not owner and kind not in done and inspect.isfunction(vars(kind)["compute_objectives"]):
            done.append(kind)
            site.wrap_hot(kind, "compute_objectives", functools.partial(_compute_objectives, muted))
        return wrapped(*args, **kwargs)

    # Nothing trains under DDP without coming past this.
    site.wrap(owner, "_wrap_distributed", wrap)
    site.wrap_hot(owner, "check_gradients", functools.partial(_check_gradients, muted))
    site.at_undo(functools.partial(_unmute_all, muted))


def _compute_objectives(muted: Muted, original: Any) -> Callable[..., Any]:
    def compute_objectives(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        if torch.is_grad_enabled() and brains.is_distributed(self):
            _unmute(muted, self)
            if _one_number(loss) and not bool(torch.isfinite(loss)):
                _mute(muted, self)
        return loss

    return compute_objectives


def _one_number(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad


def _mute(muted: Muted, brain: Any) -> None:
    """Until the next loss, every gradient that reaches a parameter is zero when it is added, and when DDP gets it."""
    trained = [parameter for parameter in brain.modules.parameters() if parameter.requires_grad]
    muted[brain] = [parameter.register_hook(torch.zeros_like) for parameter in trained]
    log.debug("the loss is not finite: this rank contributes gradients of zero")


def _unmute_all(muted: Muted) -> None:
    for brain in list(muted):
        _unmute(muted, brain)


def _unmute(muted: Muted, brain: Any) -> None:
    for hook in muted.pop(brain, ()):
        hook.remove()


def _check_gradients(muted: Muted, original: Any) -> Callable[..., Any]:
    def check_gradients(self: Any, loss: Any) -> Any:
        result = original(self, loss)
        if result or self not in muted or bool(torch.isfinite(loss)):
            return result
        # The loss is counted and warned of. A second call with a finite loss clips, so that this rank steps, too.
        return original(self, torch.zeros_like(loss))

    return check_gradients
