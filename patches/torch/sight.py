"""What one rank sees of its parameters and learning rates after a step, small enough to be compared with another's."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

# How many elements of a parameter are kept, to say by how much two ranks differ.
_SAMPLES = 4
# Integers of a parameter's size: sums of them are exact, in any order, and tell any two values apart.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Sight(NamedTuple):
    """Parameters and hyperparameters of one rank after one step.

    Attributes:
        step: how many steps the optimizer has done.
        names: a digest of the names of the parameters.
        sums: of each parameter the sum of its bits.
        samples: of each parameter some elements.
        rates: the numbers in the optimizer's groups, by ``name of group``.
    """

    step: int
    names: str
    sums: List[int]
    samples: List[List[float]]
    rates: Dict[str, str]

    def digest(self) -> str:
        """A few bytes that are the same on two ranks with the same parameters and hyperparameters."""
        return _short([self.names, self.sums, self.rates])

    def to_text(self) -> str:
        return json.dumps(self)

    @classmethod
    def from_text(cls, text: str) -> Sight:
        return cls(*json.loads(text))


def comparable(parameter: Any) -> bool:
    """Whether a parameter is a plain tensor with values: a shard (DTensor) or a quantized one may differ on purpose."""
    data = parameter.data
    return type(data) is torch.Tensor and data.layout is torch.strided and data.device.type != "meta"


def _short(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def take(step: int, parameters: Dict[str, Any], groups: Sequence[Dict[str, Any]]) -> Sight:
    """Look at parameters, with one wait for each device that they are on.

    Args:
        step: how many steps the optimizer has done.
        parameters: those for which :func:`comparable` holds, by name.
        groups: the optimizer's groups.
    """
    with torch.no_grad():
        held = [parameter.detach() for parameter in parameters.values()]
        sums = [values[0] for values in _fetched([_sum(data) for data in held])]
        samples = _fetched([_some(data) for data in held])
    return Sight(step, _short(list(parameters)), sums, samples, _rates(groups))


def _sum(data: Any) -> Any:
    return data.view(_BITS[data.element_size()]).sum(dtype=torch.int64).reshape(1)


def _some(data: Any) -> Any:
    """A few elements at equal distances."""
    flat = (data.real if data.is_complex() else data).reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES].double()


def _fetched(tensors: Sequence[Any]) -> List[List[Any]]:
    """The values of many short tensors, in one copy from each device."""
    found: List[List[Any]] = [[] for _ in tensors]
    by_device: Dict[Any, List[int]] = {}
    for number, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(number)
    for numbers in by_device.values():
        values = iter(torch.cat([tensors[number] for number in numbers]).tolist())
        for number in numbers:
            found[number] = [next(values) for _ in range(tensors[number].numel())]
    return found


def _rates(groups: Sequence[Dict[str, Any]]) -> Dict[str, str]:
    """The hyperparameters that are numbers, as text."""
    found = {}
    for number, group in enumerate(groups):
        for name, value in group.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, (int, float, tuple, list)) and name != "params":
                found[f"{name} of group {number}" if len(groups) > 1 else name] = repr(value)
    return found


class Difference(NamedTuple):
    """How this rank differs from the first one of its group.

    Attributes:
        numbers: of the parameters that differ.
        most: the largest difference that the samples of these show; NaN where one of them is.
        rates: (name, there, here) of each hyperparameter that differs.
    """

    numbers: List[int]
    most: float
    rates: List[Tuple[str, str, str]]


def difference(there: Sight, here: Sight) -> Difference:
    """How two ranks differ in the same step."""
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
