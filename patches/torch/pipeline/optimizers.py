"""Functions that the stages share which follow optimizer steps."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Set

import torch

from ddpfix import devices

from ..internals import modes, process_groups, tensors
from ..internals.wrapper import joins
from . import ddp

_compiler: Any = getattr(torch, "compiler", None)
# Whether torch.compile traces what runs here.
is_compiled: Callable[[], bool] = getattr(_compiler, "is_compiling", lambda: False)


def is_hidden() -> bool:
    """Return whether nothing may be done here: it is compiled, captured in a graph, or counted by a mode."""
    return bool(is_compiled() or devices.is_capturing() or modes.any_mode())


def is_torchs(optimizer: Any) -> bool:
    """Return whether an optimizer does what torch's own does: a user's, or his hooks, may move parameters too."""
    own_hooks = tensors.has_step_hooks(optimizer)
    return type(optimizer).__module__.startswith("torch.optim.") and not own_hooks


def device_of(optimizer: Any) -> torch.device:
    """Return the device of the first parameter of an optimizer."""
    found = (parameter.device for group in optimizer.param_groups for parameter in group["params"])
    return next(found, torch.device("cpu"))


def is_alone(model: ddp.Wrapped) -> bool:
    """Return whether a model has no other replica, or it or its group was destroyed."""
    wrapper = model.wrapper
    if wrapper is None or not process_groups.is_torchs(wrapper.process_group):
        return True
    return len(process_groups.ranks_of(wrapper.process_group)) == 1


def trained(optimizer: Any, known: Sequence[Any] = ()) -> List[ddp.Wrapped]:
    """Return the replicated models of which an optimizer has parameters."""
    held: Set[int] = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = [model for model in ddp.known() if model not in known and not is_alone(model)]
    return [model for model in found if any(id(parameter) in held for parameter in model.parameters)]


def averages(state: Any, hook: Any) -> bool:
    """Return whether a communication hook is one of torch's that leave the same gradients on all ranks."""
    place = str(getattr(hook, "__module__", ""))
    # Local SGD has replicas differ between two averagings; another hook may be wrapped around its own.
    local = "localsgd" in f"{place} {type(state).__module__}".lower()
    return place.startswith("torch.") and not local


def replicated(model: ddp.Wrapped) -> bool:
    """Return whether the ranks are to have the same parameters after this step."""
    wrapper = model.wrapper
    if wrapper is None or not model.averages or joins(wrapper):
        # Under a hook of the user's own nobody knows; ranks that have joined early do not step with the others.
        return False
    # A step on gradients of this rank alone: the program averages in a way of its own (local SGD).
    return bool(wrapper.require_backward_grad_sync)
