"""What one rank sees of its parameters and gradients after a step, small enough to be compared with another's."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, Dict, List, Optional, Sequence

import torch

from ddpfix.rules.replicas import Snapshot
from ddpfix.system import System

from ..pipeline.model import Wrapped

# How many elements of a parameter are kept, to say by how much two ranks differ.
_SAMPLES = 4
# Integers of a parameter's size: sums of them are exact, in any order, and tell any two values apart.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements that are summed at once. As int64 they take 32 MB, which glibc gives back to the system at once.
_PIECE = 1 << 22
_NUMBERS = (int, float, bool)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def digest(snapshot: Snapshot) -> str:
    """Return a few bytes that are the same on two ranks with the same parameters, without hyperparameters."""
    return _short([snapshot.forwards, snapshot.names, snapshot.sums])


def compared(model: Wrapped, optimizer: Any) -> Dict[str, Any]:
    """Return the parameters of a model that an optimizer steps and that can be compared, by name."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    pairs = zip(model.names, model.parameters)
    return {name: each for name, each in pairs if id(each) in held and comparable(each)}


def comparable(parameter: Any) -> bool:
    """Return whether a parameter and its gradient are plain tensors with values: a shard (DTensor) may differ.

    A class of the program's own is not asked for anything: it may count that.
    """
    is_own = type(parameter) not in _PLAIN
    return not is_own and parameter.grad is not None and _is_plain(parameter.data) and _is_plain(parameter.grad)


def _is_plain(data: Any) -> bool:
    return type(data) is torch.Tensor and data.layout is torch.strided and data.device.type != "meta"


def _short(value: Any) -> str:
    return hashlib.blake2b(System.json(value).encode(), digest_size=16).hexdigest()


class PendingSnapshot:
    """Parameters (:func:`comparable`, by name) right after a step, computed without a wait for a device.

    It does not keep them alive.
    """

    def __init__(
        self, step: int, forwards: int, parameters: Dict[str, Any], optimizer: Any, averaged: Optional[int] = None
    ) -> None:
        self.names, held = list(parameters), list(parameters.values())
        self._held = [weakref.ref(parameter) for parameter in held]
        self._step, self._forwards, self._averaged = step, forwards, averaged
        self._rates = _rates(optimizer, {id(parameter) for parameter in held})
        with torch.no_grad():
            self._sums = [_sum(parameter.detach()) for parameter in held]
            self._gradients = [_sum(parameter.grad) for parameter in held]
            self._samples = [_some(parameter.detach()) for parameter in held]

    def finish(self) -> Optional[Snapshot]:
        """Return what was seen, with one wait for each device; None if a parameter was moved or destroyed since."""
        held: List[Any] = [reference() for reference in self._held]
        if any(parameter is None for parameter in held):
            return None
        with torch.no_grad():
            now = [_sum(parameter.detach()) for parameter in held]
            single = [each[0] for each in _fetched([*self._sums, *now, *self._gradients])]
            count = len(held)
            if single[:count] != single[count : 2 * count]:
                return None
            samples = _fetched(self._samples)
        gradients = single[2 * count :]
        head = self._step, self._forwards, _short(self.names)
        return Snapshot(*head, single[:count], gradients, samples, self._rates, self._averaged)


def _sum(data: Any) -> Any:
    """Return the sum of the bits of a tensor's elements.

    torch copies what it sums as int64, so what is large is summed in pieces: the same number, in any order.
    """
    sums = [piece.sum(dtype=torch.int64) for piece in _pieces(data.view(_BITS[data.element_size()]))]
    return (sums[0] if len(sums) == 1 else torch.stack(sums).sum()).reshape(1)


def _pieces(data: Any) -> Sequence[Any]:
    """Return views that have each element of a tensor once, in any order."""
    if data.numel() <= _PIECE:
        return (data,)
    dense = data.permute(sorted(range(data.dim()), key=data.stride, reverse=True))
    if dense.is_contiguous():
        return tuple(dense.view(-1).split(_PIECE))
    # A part of a larger tensor.
    return tuple(data.split(max(1, _PIECE * data.shape[0] // data.numel())))


def _some(data: Any) -> Any:
    """Return a few elements at equal distances, in a type that every device has."""
    flat = (data.real if data.is_complex() else data).reshape(-1)
    some = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES]
    return some if some.dtype is torch.float64 else some.float()


def _fetched(tensors: Sequence[Any]) -> List[List[Any]]:
    """Return the values of many short tensors, in one copy from each device."""
    found: List[List[Any]] = [[] for _ in tensors]
    by_device: Dict[Any, List[int]] = {}
    for number, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(number)
    for numbers in by_device.values():
        values = iter(torch.cat([tensors[number] for number in numbers]).tolist())
        for number in numbers:
            found[number] = [next(values) for _ in range(tensors[number].numel())]
    return found


def _rates(optimizer: Any, held: Any) -> Dict[str, str]:
    """Return the hyperparameters that are numbers, of groups with parameters that are compared, as text.

    What a program keeps in the groups beside the optimizer's own hyperparameters is not among them.
    """
    found = {}
    groups = optimizer.param_groups
    for number, group in enumerate(groups):
        if not any(id(parameter) in held for parameter in group["params"]):
            continue
        for name in optimizer.defaults:
            value = group.get(name)
            if type(value) is torch.Tensor and value.numel() == 1 and value.device.type == "cpu":
                value = value.item()
            if all(type(each) in _NUMBERS for each in (value if type(value) in (tuple, list) else [value])):
                found[f"{name} of group {number}" if len(groups) > 1 else name] = repr(value)
    return found
