"""The one pair of hooks at the steps of all optimizers of torch, and what the stages share that follow them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ddpfix import devices

from ..internals import modes, process_groups, tensors
from ..internals.wrapper import joins
from . import ddp
from .order import STEPS

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


# Called as torch calls its own: with the optimizer and the arguments of its step. Before a step it may return others.
Hook = Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]


class Steps:
    """The steps of all optimizers in one activation; torch has ddpfix's hooks while somebody follows them."""

    def __init__(self) -> None:
        self._at: Dict[str, Tuple[Optional[Hook], Optional[Hook]]] = {}
        self._before: Tuple[Hook, ...] = ()
        self._after: Tuple[Hook, ...] = ()
        self._handles: List[Any] = []

    def follow(self, place: str, before: Optional[Hook] = None, after: Optional[Hook] = None) -> None:
        """Call these before and after each step, in the order of :data:`.order.STEPS`."""
        self._at[place] = before, after
        self._arrange()

    def leave(self, place: str) -> None:
        """Call nothing of this place any more."""
        if self._at.pop(place, None) is not None:
            self._arrange()

    def _arrange(self) -> None:
        followed = [self._at[place] for place in STEPS if place in self._at]
        self._before = tuple(before for before, _ in followed if before is not None)
        self._after = tuple(after for _, after in followed if after is not None)
        if followed and not self._handles:
            from torch.optim import optimizer

            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._begins))
            self._handles.append(optimizer.register_optimizer_step_post_hook(self._ended))
        while self._handles and not followed:
            self._handles.pop().remove()

    def _begins(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        changed = None
        for before in self._before:
            result = before(optimizer, args, kwargs)
            if result is not None:
                changed = args, kwargs = result
        return changed

    def _ended(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for after in self._after:
            after(optimizer, args, kwargs)
