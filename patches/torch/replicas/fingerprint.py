"""What one rank sees of its parameters and gradients after a step, small enough to be compared with another's."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ddpfix.system import System

# How many elements of a parameter are kept, to say by how much two ranks differ.
_SAMPLES = 4
# Integers of a parameter's size: sums of them are exact, in any order, and tell any two values apart.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements that are summed at once. As int64 they take 32 MB, which glibc gives back to the system at once.
_PIECE = 1 << 22
_NUMBERS = (int, float, bool)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Sight(NamedTuple):
    """Parameters, gradients and hyperparameters of one rank after one step.

    Attributes:
        step: how many steps the optimizer has done.
        forwards: how many forwards have prepared a reduction.
        names: a digest of the names of the parameters.
        sums: of each parameter the sum of its bits.
        gradients: the same of each gradient by which the step moved it.
        samples: of each parameter some elements.
        rates: the hyperparameters that are numbers, by ``name of group``.
        averaged: how many reductions DDP has ended; None where nobody counts them.
    """

    step: int
    forwards: int
    names: str
    sums: List[int]
    gradients: List[int]
    samples: List[List[float]]
    rates: Dict[str, str]
    averaged: Optional[int] = None

    def digest(self) -> str:
        """Return a few bytes that are the same on two ranks with the same parameters, without hyperparameters."""
        return _short([self.forwards, self.names, self.sums])

    def to_text(self) -> str:
        return System.json(self)

    @classmethod
    def from_text(cls, text: str) -> Sight:
        return cls(*System.loads(text))


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


class Look:
    """Parameters (:func:`comparable`, by name) right after a step, computed without a wait for a device."""

    def __init__(
        self, step: int, forwards: int, parameters: Dict[str, Any], optimizer: Any, averaged: Optional[int] = None
    ) -> None:
        self.names, self._held = list(parameters), list(parameters.values())
        self._step, self._forwards, self._averaged = step, forwards, averaged
        self._rates = _rates(optimizer, {id(parameter) for parameter in self._held})
        with torch.no_grad():
            self._sums = [_sum(parameter.detach()) for parameter in self._held]
            self._gradients = [_sum(parameter.grad) for parameter in self._held]
            self._samples = [_some(parameter.detach()) for parameter in self._held]

    def finish(self) -> Optional[Sight]:
        """Return what was seen, with one wait for each device; None if the program has moved a parameter since."""
        with torch.no_grad():
            now = [_sum(parameter.detach()) for parameter in self._held]
            single = [each[0] for each in _fetched([*self._sums, *now, *self._gradients])]
            count = len(self._held)
            if single[:count] != single[count : 2 * count]:
                return None
            samples = _fetched(self._samples)
        gradients = single[2 * count :]
        head = self._step, self._forwards, _short(self.names)
        return Sight(*head, single[:count], gradients, samples, self._rates, self._averaged)


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


def unequal(there: Sight, here: Sight) -> List[int]:
    """Return the numbers of the parameters that differ, of two ranks that have moved the same ones; else none."""
    if there.names != here.names or there.gradients == here.gradients:
        return []
    return [number for number, pair in enumerate(zip(there.sums, here.sums)) if pair[0] != pair[1]]


def averaged_apart(there: Sight, here: Sight) -> bool:
    """Return whether DDP has averaged different numbers of times on two ranks that differ by the same step.

    Each average is one of all ranks: then gradients of different steps have met, or are added up.
    """
    counted = there.averaged is not None and here.averaged is not None and there.averaged != here.averaged
    return counted and bool(unequal(there, here))


class Difference(NamedTuple):
    """How this rank differs from the first one of its group.

    Attributes:
        most: the largest difference that the samples of these parameters show; NaN where one of them is.
        rates: (name, there, here) of each hyperparameter that differs.
    """

    numbers: List[int]
    most: float
    rates: List[Tuple[str, str, str]]


def difference(there: Sight, here: Sight) -> Optional[Difference]:
    """Return how two ranks differ in the same step; None where their steps cannot be compared.

    They can where both have moved the same parameters by the same gradients, after equally many forwards: then DDP has
    averaged these gradients, and what differs is not of a rank's own by them.
    """
    if (there.names, there.forwards, there.gradients) != (here.names, here.forwards, here.gradients):
        return None
    numbers = [number for number, pair in enumerate(zip(there.sums, here.sums)) if pair[0] != pair[1]]
    distances = [
        abs(other - own) for number in numbers for other, own in zip(there.samples[number], here.samples[number])
    ]
    rates = [
        (name, there.rates.get(name, "none"), here.rates.get(name, "none"))
        for name in sorted({*there.rates, *here.rates})
        if there.rates.get(name) != here.rates.get(name)
    ]
    most = float("nan") if any(each != each for each in distances) else max(distances, default=0.0)
    return Difference(numbers, most, rates)
