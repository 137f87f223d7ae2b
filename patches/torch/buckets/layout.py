"""DDP's gradient buckets end where layers end that may be skipped, so that a skipped layer has buckets of its own.

Under ``find_unused_parameters=True`` the assignment that DDP makes at construction stays. Without the flag DDP rebuilds
its buckets after the first step, and a newer torch accepts their sizes. Small layers share a bucket where many small
collectives cost more than they save (:mod:`.cost`).
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any, Callable, List, Optional, Sequence, Tuple

from torch import distributed

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError, Site

from ..pipeline import ddp
from . import cost
from .window import droppable

_ASSIGN = "_compute_bucket_assignment_by_size"
Assigned = Tuple[List[List[int]], List[int]]


def layers(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in.

    Raises:
        PatchError: DDP no longer asks torch.distributed for the assignment.
    """
    if not hasattr(distributed, _ASSIGN):
        raise PatchError(f"torch.distributed.{_ASSIGN} is not there")
    ddp.put(site, owner, BucketLayout())


class BucketLayout(ddp.Stage):
    """Replaces the function that assigns buckets and the class of the reducer while DDP's constructor runs."""

    place = "bucket_layout"

    def together(self, call: ddp.Call) -> None:
        plan = call.facts["plan"] = _plan(call)
        if not plan.together:
            return
        assign = assignment(getattr(distributed, _ASSIGN), call.module, plan.least)
        reducer = call.facts["reducer"] = Rebuilt(distributed.Reducer, call.module, plan.least)
        call.around.enter_context(temporary.replaced(distributed, _ASSIGN, assign))
        call.around.enter_context(temporary.replaced(distributed, "Reducer", reducer))

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        reducer = None if call is None else call.facts.get("reducer")
        model.sized = reducer is not None and reducer.sized


def _plan(call: ddp.Call) -> cost.Plan:
    """Return how layers share buckets; all ranks call it together, because it measures what collectives cost."""
    given = call.arguments
    agreed = call.facts.get("seed") is not None and cover.active(call.module)
    if not agreed or given.get("static_graph") or given.get("mixed_precision") is not None:
        return cost.NOTHING
    caps = given.get("bucket_cap_mb_list") or [given.get("bucket_cap_mb") or _DEFAULT_CAP]
    return cost.for_model(call.module, int(max(caps) * 1024 * 1024), call.group)


# In megabytes, DDP's own default.
_DEFAULT_CAP = 25
# By how much layers that have buckets of their own may be smaller than their mean.
_UNEVEN = 0.1


def assignment(original: Callable[..., Assigned], model: Any, least: float) -> Callable[..., Assigned]:
    """torch's function, called once for each run of parameters that belong to one layer, or to none.

    Args:
        original: ``original(tensors, limits, expect_sparse)`` gives lists of indices and the limit of each.
        model: the module that is about to be wrapped.
        least: how many bytes the layers that share a bucket have at least.
    """

    def assign(tensors: Sequence[Any], limits: Sequence[int], sparse: Sequence[bool] = (), *rest: Any) -> Assigned:
        try:
            runs = _runs(tensors, model, least)
        except Exception as error:
            log.debug(f"buckets stay as torch makes them: {error!r}")
            runs = []
        # Without the flag there is one bucket in the first step, after which DDP rebuilds its buckets by itself.
        if rest or len(runs) < 2 or limits[0] == sys.maxsize:
            return original(tensors, limits, sparse, *rest)
        assigned: List[List[int]] = []
        sizes: List[int] = []
        for run in runs:
            part = [tensors[index] for index in run]
            # The first limit is for the first parameters, whose gradients come last.
            own = list(limits) if run[0] == 0 else [_even(sum(map(_bytes, part)), limits[-1])]
            lists, given = original(part, own, [sparse[index] for index in run] if len(sparse) else list(sparse))
            assigned += [[run[index] for index in each] for each in lists]
            sizes += list(given)
        return assigned, sizes

    return assign


class Rebuilt:
    """Constructs torch's reducer with the sizes of the buckets that it will rebuild.

    Only a newer torch takes a list of sizes. A list of the user's own stays.

    Args:
        reducer_class: torch's class.
        model: the module that is about to be wrapped.
        least: how many bytes the layers that share a bucket have at least.
    """

    def __init__(self, reducer_class: Any, model: Any, least: float) -> None:
        self._reducer_class, self._model, self._least = reducer_class, model, least
        # Whether the reducer got the sizes.
        self.sized = False

    def __call__(self, *given: Any, **others: Any) -> Any:
        # Positions in the constructor of torch 2.13, as DDP itself fills them.
        if len(given) > _SIZES and given[_SIZES] == [] and given[_FLAG] is False and not others:
            sizes: List[int] = []
            try:
                sizes = _sizes(given[0], self._model, given[_FIRST], given[_CAP], self._least)
            except Exception as error:
                log.debug(f"buckets stay as torch makes them: {error!r}")
            self.sized = bool(sizes)
            given = (*given[:_SIZES], sizes, *given[_SIZES + 1 :])
        return self._reducer_class(*given, **others)


_CAP, _FLAG, _FIRST, _SIZES = 5, 6, 9, 12


def _sizes(tensors: Sequence[Any], model: Any, first: int, cap: int, least: float) -> List[int]:
    """Return the bytes of each bucket, if gradients come from the last parameter to the first."""
    # Buckets hold one type, on one device.
    if len({(tensor.dtype, tensor.device) for tensor in tensors}) > 1:
        return []
    runs = _runs(tensors, model, least)
    if len(runs) < 2:
        return []
    sizes: List[int] = []
    for run in reversed(runs):
        filled, limit = 0, _even(sum(_bytes(tensors[index]) for index in run), cap)
        for index in reversed(run):
            filled += _bytes(tensors[index])
            if filled >= (limit if sizes else first):
                sizes.append(filled)
                filled = 0
        if filled:
            sizes.append(filled)
    return sizes


def _even(size: int, cap: int) -> int:
    """Return the limit that leaves no small remainder: a layer a little larger than DDP's limit stays in one bucket."""
    return math.ceil(size / max(1, round(size / cap)))


def _bytes(tensor: Any) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size


def _runs(tensors: Sequence[Any], model: Any, least: float) -> List[List[int]]:
    """Return all indices in order: a list for each group of layers with buckets of its own, and one for the rest.

    Args:
        tensors: the parameters that DDP reduces.
        model: the module that is about to be wrapped.
        least: how many bytes the layers that share a bucket have at least.
    """
    numbers = {id(tensor): index for index, tensor in enumerate(tensors)}
    layers = droppable(model, None, lambda parameter: numbers.get(id(parameter), -1)).values()
    places = {index: layer for layer, own in enumerate(sorted(map(sorted, layers))) for index in own}
    # ``least`` comes from the mean of all layers; some may be a little smaller (WavLM's first has one more embedding).
    least *= 1 - _UNEVEN
    runs: List[_Run] = []
    for index, tensor in enumerate(tensors):
        place = places.get(index)
        size = _bytes(tensor)
        if not runs or runs[-1].ends_before(place, least):
            runs.append(_Run(place))
        runs[-1].add(index, place, size)
    return [run.indices for run in _without_remainders(runs, least)]


class _Run:
    """Neighbouring parameters, either of layers that may be skipped or of none (``place`` is None)."""

    def __init__(self, place: Optional[int]) -> None:
        self.place = place
        self.indices: List[int] = []
        self.size = 0

    def ends_before(self, place: Optional[int], least: float) -> bool:
        """Return whether a parameter of this place begins the next run: layers stay whole, small ones are grouped."""
        if self.place is None or place is None:
            return self.place is not place
        return place != self.place and self.size >= least

    def add(self, index: int, place: Optional[int], size: int) -> None:
        self.place = place
        self.indices.append(index)
        self.size += size


def _without_remainders(runs: Sequence[_Run], least: float) -> List[_Run]:
    """Join a last layer of a stack to the group before it where it is too small for buckets of its own."""
    joined: List[_Run] = []
    for run in runs:
        before = joined[-1] if joined else None
        if before is not None and before.place is not None and run.place is not None and run.size < least:
            before.indices += run.indices
            before.size += run.size
        else:
            joined.append(run)
    return joined
