"""Two forwards before one backward, of a model with buffers (pytorch issue 22095).

DDP broadcasts the buffers of rank 0 into those of all ranks before each forward. Where an earlier forward still waits
for its backward (a GAN, a contrastive loss), autograd then refuses: "one of the variables needed for gradient
computation has been modified by an inplace operation", although nothing that the backward reads has changed. torch 2.12
hides all of these writes from autograd. Here a write is hidden only where that is exact: the buffer has the value that
it had, or it is a running statistic of a normalization in training mode, which no backward reads. Any other write ends
in torch's error.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple

import torch

from ddpfix.exchange import lowest_rank
from ddpfix.patching.site import Site

from ..internals import tensors
from ..internals import wrapper as private
from ..pipeline import ddp


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in: it notes which forwards wait for a backward."""
    if not _hides_by_itself(owner):
        ddp.put(site, owner, Buffers())


def broadcast(site: Site, module: ModuleType, owner: Any) -> None:
    if not _hides_by_itself(owner):
        site.wrap_hot(owner, "_sync_buffers", _hidden)


def _hides_by_itself(owner: Any) -> bool:
    return "_unsafe_preserve_version_counter" in vars(owner)["_sync_buffers"].__code__.co_names


class Buffers(ddp.Stage):
    place = "buffers"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        wrapper = model.wrapper
        if wrapper.broadcast_buffers and next(wrapper.module.buffers(), None) is not None:
            forwards = FORWARDS.put(model, Forwards(wrapper))
            model.attach(self.place, after=forwards.ended)

    def ended(self, model: ddp.Wrapped) -> None:
        FORWARDS.clear(model)


class _Forward:
    """A forward that waits for its backward, with its training normalizations; the graph alone keeps it alive."""

    def __init__(self, statistics: FrozenSet[int]) -> None:
        self.statistics, self.waits = statistics, True


class Forwards:
    """The forwards of one model under DDP whose graphs no backward has reached."""

    def __init__(self, wrapper: Any) -> None:
        self._norms = [weakref.ref(module) for module in wrapper.module.modules() if _keeps_statistics(module)]
        self._begun: weakref.WeakSet[_Forward] = weakref.WeakSet()

    def ended(self, output: Any) -> None:
        """Called after a forward with gradients enabled."""
        nodes = [tensor.grad_fn for tensor in ddp.tensors(output) if tensor.grad_fn is not None]
        if nodes:
            forward = _Forward(frozenset(id(norm) for norm in self._alive() if norm.training))
            self._begun.add(forward)
            for node in nodes:
                node.register_hook(functools.partial(_reached, forward))

    def waiting(self) -> List[_Forward]:
        return [forward for forward in self._begun if forward.waits]

    def unread(self, forwards: List[_Forward]) -> FrozenSet[int]:
        """Return the ids of buffers that no backward of these forwards reads, whatever their values."""
        ids = frozenset.intersection(*(forward.statistics for forward in forwards))
        norms = [norm for norm in self._alive() if id(norm) in ids]
        return frozenset(id(buffer) for norm in norms for buffer in tensors.buffers_in(norm).values())

    def _alive(self) -> List[Any]:
        return [norm for norm in (ref() for ref in self._norms) if norm is not None]


def _keeps_statistics(module: Any) -> bool:
    """Return whether this is torch's own normalization, whose backward in training uses the batch's statistics."""
    if not tensors.is_norm(module) or "forward" in vars(module):
        return False
    return bool(module.track_running_stats) and type(module).forward.__module__.startswith("torch.nn.")


# The forwards that wait for a backward, of a model whose buffers DDP broadcasts.
FORWARDS: ddp.Slot[Forwards] = ddp.Slot()


def _reached(forward: _Forward, *gradients: Any) -> None:
    """Called after a node of the forward has run in a backward."""
    forward.waits = False


def _hidden(original: Callable[..., Any]) -> Callable[..., Any]:
    def _sync_buffers(self: Any) -> Any:
        model = ddp.of(self)
        forwards = None if model is None else FORWARDS.of(model)
        waiting = [] if forwards is None else forwards.waiting()
        if forwards is None or not waiting or hasattr(self, "buffer_hook"):
            return original(self)
        before = held(self, forwards.unread(waiting))
        result = original(self)
        hide(before)
        text = (
            f"{type(self.module).__name__} runs a forward before the backward of an earlier one. Where no gradient"
            " depends on a buffer, ddpfix hides DDP's broadcast into it from autograd"
        )
        lowest_rank.report("buffers", text)
        return result

    return _sync_buffers


def held(wrapper: Any, unread: FrozenSet[int]) -> List[Tuple[Any, int, Any]]:
    """(buffer, version, value) of the buffers of a model in front of a broadcast; None for a value that cannot count.

    Args:
        unread: the ids of those that no backward reads.
    """
    # The rank whose buffers are broadcast writes what they hold.
    keeps = private.sends_buffers(wrapper)
    return [
        (buffer, tensors.version(buffer), None if keeps or id(buffer) in unread else buffer.detach().clone())
        for buffer in wrapper.module.buffers()
        if not buffer.is_inference()
    ]


def hide(held: List[Tuple[Any, int, Any]]) -> None:
    """Give buffers that no backward will miss the version that they had."""
    same = _equal([(buffer, before) for buffer, _, before in held if before is not None])
    hidden = {id(buffer) for buffer, _, before in held if before is None or id(buffer) in same}
    shown = [(buffer, tensors.version(buffer)) for buffer, _, _ in held if id(buffer) not in hidden]
    for buffer, version in [*((each[0], each[1]) for each in held if id(each[0]) in hidden), *shown]:
        # A view shares its version with others, so that one which stays is given its own again.
        if tensors.version(buffer) != version:
            tensors.set_version(buffer, version)


def _equal(pairs: List[Tuple[Any, Any]]) -> Set[int]:
    """Return the ids of the first ones of equal pairs, with one wait for each device, however many there are."""
    by_device: Dict[Any, List[Tuple[int, Any]]] = {}
    for now, before in pairs:
        # NaN is what it was.
        equal = ((now == before) | ((now != now) & (before != before))).all()
        by_device.setdefault(now.device, []).append((id(now), equal))
    found: Set[int] = set()
    for compared in by_device.values():
        answers = torch.stack([equal for _, equal in compared]).tolist()
        found.update(number for (number, _), equal in zip(compared, answers) if equal)
    return found
