"""DDP's gradient buckets end where layers end that may be skipped, so that what a skipped layer has fills its own.

Under ``find_unused_parameters=True`` the assignment that DDP makes at construction stays. Without the flag DDP makes
it anew after the first step, and a newer torch can be told the sizes. Layers that are too small for a bucket of their
own stay in the plain assignment: many small collectives cost more than they save.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable, Dict, List, Sequence, Tuple

from torch import distributed

from ddpfix import draws, log, meanwhile
from ddpfix.registry import PatchError, Site

from .window import droppable

# Bytes; DDP's own first bucket is of this size.
SMALLEST = 1 << 20
_ASSIGN = "_compute_bucket_assignment_by_size"
Assigned = Tuple[List[List[int]], List[int]]


def layers(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``DistributedDataParallel.__init__``, which asks torch.distributed for the assignment."""
    if not hasattr(distributed, _ASSIGN):
        raise PatchError(f"torch.distributed.{_ASSIGN} is not there")

    def built(wrapped: Any, wrapper: Any, args: Any, kwargs: Any) -> Any:
        model = args[0] if args else kwargs.get("module")
        if model is None or not draws.active(model):
            return wrapped(*args, **kwargs)
        assign = assignment(getattr(distributed, _ASSIGN), model)
        reducer = rebuilt(distributed.Reducer, model)
        with meanwhile.replaced(distributed, _ASSIGN, assign), meanwhile.replaced(distributed, "Reducer", reducer):
            return wrapped(*args, **kwargs)

    site.once(owner, "__init__", built)


def assignment(stock: Callable[..., Assigned], model: Any) -> Callable[..., Assigned]:
    """torch's function, asked for each run of parameters that belong to one layer, or to none.

    Args:
        stock: ``stock(tensors, limits, expect_sparse)`` gives lists of indices and the limit of each.
        model: the module that is about to be wrapped.
    """

    def assign(tensors: Sequence[Any], limits: Sequence[int], sparse: Sequence[bool] = (), *rest: Any) -> Assigned:
        try:
            runs = _runs(tensors, model)
        except Exception as error:
            log.debug(f"buckets stay as torch makes them: {error!r}")
            runs = []
        # Without the flag there is one bucket for the first step, after which DDP makes them anew by itself.
        if rest or len(runs) < 2 or limits[0] == sys.maxsize:
            return stock(tensors, limits, sparse, *rest)
        found: List[List[int]] = []
        sizes: List[int] = []
        for run in runs:
            part = [tensors[index] for index in run]
            # The first limit is for the first parameters, whose gradients come last.
            own = list(limits) if run[0] == 0 else list(limits[-1:])
            lists, given = stock(part, own, [sparse[index] for index in run] if len(sparse) else list(sparse))
            found += [[run[index] for index in each] for each in lists]
            sizes += list(given)
        return found, sizes

    return assign


def rebuilt(stock: Any, model: Any) -> Callable[..., Any]:
    """torch's reducer, told the size of each bucket for when it makes them anew, in the order of the gradients.

    Only a newer torch takes a list of sizes, and none of the user's own may be there.

    Args:
        stock: the class of the reducer.
        model: the module that is about to be wrapped.
    """

    def reducer(*given: Any, **others: Any) -> Any:
        # Positions in the constructor of torch 2.13, as DDP itself fills them.
        if len(given) > _SIZES and given[_SIZES] == [] and given[_FLAG] is False and not others:
            sizes: List[int] = []
            try:
                sizes = _sizes(given[0], model, given[_FIRST], given[_CAP])
            except Exception as error:
                log.debug(f"buckets stay as torch makes them: {error!r}")
            given = (*given[:_SIZES], sizes, *given[_SIZES + 1 :])
        return stock(*given, **others)

    return reducer


_CAP, _FLAG, _FIRST, _SIZES = 5, 6, 9, 12


def _sizes(tensors: Sequence[Any], model: Any, first: int, cap: int) -> List[int]:
    """The bytes of each bucket, if gradients come from the last parameter to the first."""
    # Buckets hold one type, on one device.
    if len({(tensor.dtype, tensor.device) for tensor in tensors}) > 1:
        return []
    runs = _runs(tensors, model)
    if len(runs) < 2:
        return []
    found: List[int] = []
    for run in reversed(runs):
        filled = 0
        for index in reversed(run):
            filled += tensors[index].numel() * tensors[index].element_size()
            if filled >= (cap if found else first):
                found.append(filled)
                filled = 0
        if filled:
            found.append(filled)
    return found


def _runs(tensors: Sequence[Any], model: Any) -> List[List[int]]:
    """All indices in order: a list for each layer that has buckets of its own, and one for what lies between two."""
    numbers = {id(tensor): index for index, tensor in enumerate(tensors)}
    places: Dict[int, Tuple[str, int]] = {}
    for layer, own in droppable(model, None, lambda parameter: numbers.get(id(parameter), -1)).items():
        if sum(tensors[index].numel() * tensors[index].element_size() for index in own) >= SMALLEST:
            places.update(dict.fromkeys(own, layer))
    runs: List[List[int]] = []
    last: Any = ()
    for index in range(len(tensors)):
        place: Any = places.get(index)
        if place != last:
            runs.append([])
        runs[-1].append(index)
        last = place
    return runs
