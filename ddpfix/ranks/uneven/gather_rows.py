"""Gathers every rank's numbers on every rank, by one small collective."""

from __future__ import annotations

from typing import Any, List, Sequence

from ddpfix.ranks.uneven.async_sum import PendingSum


def gathered(numbers: Sequence[int], device: Any = "cpu", group: Any = None) -> List[List[int]]:
    """Return one row a rank, in the order of ranks; every rank of the group has to call this.

    Args:
        numbers: the numbers of this rank; every rank has as many.
        device: where the group takes its tensors, if its backend is not gloo.

    Raises:
        RuntimeError: a rank has ended; :class:`~ddpfix.ranks.failures.first_failure.PeerFailedError` if
        it left a cause.
    """
    from torch import distributed

    width, rank = len(numbers), distributed.get_rank(group)
    table = [0] * (width * distributed.get_world_size(group))
    table[rank * width : (rank + 1) * width] = numbers
    values = PendingSum(table, group, "cpu" if distributed.get_backend(group) == "gloo" else device).result()
    return [values[begin : begin + width] for begin in range(0, len(values), width)]
