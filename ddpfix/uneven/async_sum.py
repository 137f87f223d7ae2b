"""Asynchronous agreement: ranks sum a few numbers in the background, and read the result a step later."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any, List, Optional, Sequence

from ddpfix import log
from ddpfix.exchange import failure_records, roll_call
from ddpfix.exchange.keys import count, default_store
from ddpfix.groups import internals
from ddpfix.system import System

# Seconds in which the hosts of the ranks connect by gloo, or do not, and what each rank adds: each connects with each.
_CONNECT, _EACH = 180.0, 0.2
# Seconds that a rank may be done with it later than another one, all of which have begun.
_LATER = 30.0
# By the default process group, ours of the same ranks, which torch keeps until the default one is destroyed. Both are
# weak: a group that is kept alive keeps its store, and so the port that the next group may want.
_GROUPS: weakref.WeakKeyDictionary[Any, Optional[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def cpu_group(timeout: timedelta) -> Any:
    """Return a gloo group of all ranks, for small things that live on the CPU, or None; every rank has to call this.

    It is a group of our own even if the default one is gloo, so that its collectives do not mix with the gradients'.

    Args:
        timeout: how long a rank may be behind another; the first call decides.
    """
    default = internals.default_group()
    if default not in _GROUPS:
        group = _made(timeout) if _connects(default, timeout.total_seconds()) else None
        _GROUPS[default] = None if group is None else weakref.ref(group)
    reference = _GROUPS[default]
    return None if reference is None else reference()


def _made(timeout: timedelta) -> Any:
    from torch import distributed

    try:
        return distributed.new_group(backend="gloo", timeout=timeout) if distributed.is_gloo_available() else None
    except RuntimeError as error:
        log.debug(f"no gloo group: {error}")
        return None


def _connects(default: Any, patience: float) -> bool:
    """Return whether all ranks can be connected by gloo; every rank gets the same answer.

    A group connects for as long as its collectives may wait: where only NCCL knows the way between the machines (gloo
    then takes the address of the host's name, which may be 127.0.1.1), the first epoch would begin a day later. So a
    group that is given up after minutes is made first, unless the default group is connected by gloo already.

    Args:
        patience: seconds by which a rank may come here later than another one.
    """
    from torch import distributed

    store = default_store()
    if store is None or internals.has_gloo(default):
        return True
    place, ranks = f"gloo/{count(store, 'gloo')}", list(range(default.size()))
    limit = _CONNECT + _EACH * len(ranks)
    # Whoever is late (rank 0 prepares the data of all) is not to be taken for one that gloo cannot reach.
    if not roll_call.all_come(f"{place}/here", ranks, patience):
        return False
    begun, probe = System.monotonic(), _made(timedelta(seconds=limit))
    if probe is None:
        roll_call.refuse(place, ranks)
    elif roll_call.all_come(place, ranks, limit + _LATER):
        distributed.destroy_process_group(probe)
        return True
    log.warning(
        f"gloo has not connected these ranks in {System.monotonic() - begun:.0f} s. If it took the wrong network"
        " interface, set GLOO_SOCKET_IFNAME"
    )
    return False


class PendingSum:
    """A few numbers of each rank, whose sums over all ranks of a group are computed in the background.

    A 1 for "this rank can" makes a sum as large as the group if all ranks can; otherwise the sum says how many cannot.

    Args:
        numbers: the numbers of this rank; every rank has as many.
        device: where the group's backend takes tensors.
    """

    def __init__(self, numbers: Sequence[int], group: Any, device: Any = "cpu") -> None:
        import torch
        from torch import distributed

        self._numbers = torch.tensor(list(numbers), dtype=torch.int64, device=device)
        self._work = distributed.all_reduce(self._numbers, group=group, async_op=True)

    def is_ready(self) -> bool:
        """Return whether the sums are there, or never will be."""
        return bool(self._work.is_completed())

    def result(self) -> List[int]:
        """Return the sums, when the last rank has sent its numbers; RuntimeError, PeerFailedError: one has ended."""
        try:
            self._work.wait()
        except RuntimeError as error:
            cause = failure_records.cause()
            if cause is None:
                raise
            raise failure_records.PeerFailedError(cause) from error
        sums: List[int] = self._numbers.tolist()
        return sums


def gathered(numbers: Sequence[int], device: Any = "cpu", group: Any = None) -> List[List[int]]:
    """Return one row a rank, in the order of ranks; every rank of the group has to call this.

    Args:
        numbers: the numbers of this rank; every rank has as many.
        device: where the group takes its tensors, if its backend is not gloo.

    Raises:
        RuntimeError: a rank has ended; :class:`~ddpfix.exchange.failure_records.PeerFailedError` if
        it left a cause.
    """
    from torch import distributed

    width, rank = len(numbers), distributed.get_rank(group)
    table = [0] * (width * distributed.get_world_size(group))
    table[rank * width : (rank + 1) * width] = numbers
    values = PendingSum(table, group, "cpu" if distributed.get_backend(group) == "gloo" else device).result()
    return [values[begin : begin + width] for begin in range(0, len(values), width)]
