"""Decides whether buckets that end where layers end save time, from what collectives cost in this group.

A bucket of its own lets a layer be left out of the communication when all ranks skip it; it costs one more collective
in every step. Two numbers decide: the time of one more collective, and the time that the bytes take. Both are measured
once a group, with some small all-reduces, when the first model that skips layers is wrapped; all ranks take the mean.
"""

from __future__ import annotations

import math
import time
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import torch
from torch import distributed

from ddpfix import devices, log
from ddpfix.layerdrop import cover
from ddpfix.ranks.groups import timeouts
from ddpfix.ranks.store import roll_call

from ..internals import process_groups
from .window import droppable

# All-reduces of each kind in a round, after one that is not counted, the bytes of the large ones, and rounds.
_SMALL, _LARGE, _BYTES, _ROUNDS = 16, 2, 4 << 20, 3


class Costs(NamedTuple):
    """Seconds.

    Attributes:
        collective: of one more collective, while others are under way.
        byte: of one more byte in a collective.
        launch: of a communication hook, for each bucket.
        copy: of a communication hook, for each byte, because torch then divides in a pass of its own.
    """

    collective: float
    byte: float
    launch: float
    copy: float


def measured(group: Any, device: torch.device) -> Optional[Costs]:
    """Return the costs of collectives, measured once a group; None on all of its ranks where one cannot measure them.

    Args:
        group: the process group that DDP will use, or None for the default one.
        device: where gradients are.
    """
    key = process_groups.default() if group is None else group
    if key not in _KNOWN:
        costs = _KNOWN[key] = _agreed(group, device)
        if costs is not None:
            log.debug(
                f"one more collective takes {costs.collective * 1e6:.0f} us here, a megabyte {costs.byte * 1e9:.2f} ms;"
                f" a communication hook {costs.launch * 1e6:.0f} us a bucket and {costs.copy * 1e9:.2f} ms a megabyte"
            )
    return _KNOWN[key]


_KNOWN: weakref.WeakKeyDictionary[Any, Optional[Costs]] = weakref.WeakKeyDictionary()
_LATE = "waiting for the other ranks to measure what collectives cost"
_WHY = "All ranks construct DistributedDataParallel together, and lay its buckets out alike."
_WORDS = roll_call.Words(_LATE, _WHY)
Result = TypeVar("Result")


def _agreed(group: Any, device: torch.device) -> Optional[Costs]:
    """Measure on all ranks together.

    A rank that cannot go on says so through the store: it is in no collective then for which the others wait, and all
    of them decide from the same numbers, or from none.
    """
    members = process_groups.members_of(group)
    name = roll_call.name_of_next(members.name, "costs")
    # As long as the collectives themselves wait: a rank that is later than that ends the job without ddpfix as well.
    calls = roll_call.RollCall(f"costs/{name}", members.ranks, timeouts.shortest(group) or roll_call.LIMIT, _WORDS)
    tensors = _tried(lambda: _tensors(device))
    if not calls.same(f"measures what collectives cost: {tensors is not None}") or tensors is None:
        return None
    own = tensors
    costs = _tried(lambda: _measure(group, *own))
    return costs if calls.same(f"has measured what collectives cost: {costs}") else None


def _tried(action: Callable[[], Result]) -> Optional[Result]:
    try:
        return action()
    except Exception as error:
        log.debug(f"what collectives cost here is not known: {error!r}")
        return None


def _tensors(device: torch.device) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is reduced: a small tensor, a large one, and one for the numbers that ranks share.

    All are of 32 bits, the type of most gradients: some accelerators, or their collectives, have none of 64.
    """
    small, large, numbers = (torch.zeros(size, dtype=torch.float32, device=device) for size in (256, _BYTES // 4, 4))
    return small, large, numbers


def _measure(group: Any, small: torch.Tensor, large: torch.Tensor, numbers: torch.Tensor) -> Costs:
    device = small.device
    for tensor in (small, large):
        _reduce(tensor, group, 1)
    # Other load of the machine only ever adds time, so the best of some rounds is what the network takes.
    rounds = [(*_reduce(small, group, _SMALL), _reduce(large, group, _LARGE)[1]) for _ in range(_ROUNDS)]
    launch, collective, whole = (min(each) for each in zip(*rounds))
    copy = min(_timed(lambda: large.mul_(0.5), device) for _ in range(_ROUNDS))
    own = Costs(collective, max(0.0, whole - collective) / _BYTES, launch, copy / _BYTES)
    # Ranks lay their buckets out alike only if they decide from the same numbers.
    numbers.copy_(torch.tensor(own, dtype=torch.float32))
    distributed.all_reduce(numbers, group=group)
    return Costs(*(numbers / distributed.get_world_size(group)).tolist())


def _reduce(tensor: torch.Tensor, group: Any, count: int) -> Tuple[float, float]:
    """Seconds to begin, and to have done, each of ``count`` all-reduces that are under way together."""
    devices.synchronize(tensor.device)
    begun = time.perf_counter()
    works = [distributed.all_reduce(tensor, group=group, async_op=True) for _ in range(count)]
    launched = time.perf_counter()
    for work in works:
        work.wait()
    devices.synchronize(tensor.device)
    return (launched - begun) / count, (time.perf_counter() - begun) / count


def _timed(action: Callable[[], object], device: torch.device) -> float:
    begun = time.perf_counter()
    action()
    devices.synchronize(device)
    return time.perf_counter() - begun


class Plan(NamedTuple):
    """How the layers of a model share buckets.

    Attributes:
        together: how many layers a bucket has at least; 0: buckets stay as torch makes them, and all are sent.
        least: their bytes.
        gain: seconds that a step saves, in the mean.
        share: the share of all gradient bytes that is not sent, in the mean.
    """

    together: int
    least: float
    gain: float
    share: float


NOTHING = Plan(0, 0.0, 0.0, 0.0)


def plan(model: Any, cap: int, costs: Costs, hooked: bool = False) -> Plan:
    """Return the best way to lay out the buckets of a model that skips layers.

    Args:
        model: the module inside of the wrapper.
        cap: DDP's limit for a bucket, in bytes.
        costs: of collectives in its group.
        hooked: whether the user has a communication hook already, so that ours adds no cost.
    """
    sizes = {id(p): p.numel() * p.element_size() for p in model.parameters() if p.requires_grad}
    layers = _layers(model, sizes)
    whole = float(sum(sizes.values()))
    if not layers or not whole:
        return NOTHING
    plans = [_plan(together, layers, whole, cap, costs, hooked) for together in range(1, len(layers) + 1)]
    best = max(plans, key=lambda each: each.gain)
    return best if best.gain > 0 else NOTHING


def _layers(model: Any, sizes: Any) -> List[Tuple[int, float]]:
    """(bytes, rate) of each layer that may be skipped."""
    rates = {name: rate for name, _, rate in cover.active(model)}
    sized = []
    for (name, index), own in droppable(model, None, id).items():
        rate = rates.get(name, rates.get(f"{name}.{index}", max(rates.values())))
        sized.append((sum(sizes.get(number, 0) for number in own), float(rate)))
    return [(size, rate) for size, rate in sized if size]


def _plan(
    together: int, layers: Sequence[Tuple[int, float]], whole: float, cap: int, costs: Costs, hooked: bool
) -> Plan:
    own = float(sum(size for size, _ in layers))
    rate = sum(rate for _, rate in layers) / len(layers)
    least = own / len(layers) * together
    saved = own * rate**together
    buckets = math.ceil(len(layers) / together) * max(1, round(least / cap)) + math.ceil((whole - own) / cap)
    # Buckets a little larger than DDP's own are no gain.
    more = max(0, buckets - math.ceil(whole / cap))
    hook = 0.0 if hooked else buckets * costs.launch + whole * costs.copy
    return Plan(together, least, saved * costs.byte - more * costs.collective - hook, saved / whole)


def for_model(model: Any, cap: Optional[int], group: Any, hooked: bool = False) -> Plan:
    """Return the plan for a model that is about to be wrapped, or is; all ranks of its group call it together."""
    parameter = next((p for p in model.parameters() if p.requires_grad), None)
    if parameter is None or cap is None or distributed.get_world_size(group) < 2:
        return NOTHING
    costs = measured(group, parameter.device)
    best = NOTHING if costs is None else plan(model, cap, costs, hooked)
    text = f"{best.together} layers share a bucket, and {best.share:.0%} of all gradients are not sent"
    otherwise = "buckets stay as torch makes them, and all are sent: that takes less time"
    log.debug(f"{type(model).__name__}: {text if best.together else otherwise}")
    return best
