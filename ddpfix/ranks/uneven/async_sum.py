"""Asynchronous agreement: ranks sum a few numbers in the background, and read the result a step later."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any, List, Optional, Sequence

from ddpfix import log
from ddpfix.ranks.failures import first_failure
from ddpfix.ranks.groups import internals

# By the default process group, ours of the same ranks, which torch keeps until the default one is destroyed. Both are
# weak: a group that is kept alive keeps its store, and so the port that the next group may want.
_GROUPS: weakref.WeakKeyDictionary[Any, Optional[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def cpu_group(timeout: timedelta) -> Any:
    """Return a gloo group of all ranks, for small things that live on the CPU, or None; every rank has to call this.

    It is a group of our own even if the default one is gloo, so that its collectives do not mix with the gradients'.

    Args:
        timeout: how long a rank may be behind another; the first call decides.
    """
    from torch import distributed

    default = internals.default_group()
    if default not in _GROUPS:
        try:
            group = distributed.new_group(backend="gloo", timeout=timeout) if distributed.is_gloo_available() else None
        except RuntimeError as error:
            log.debug(f"no gloo group: {error}")
            group = None
        _GROUPS[default] = None if group is None else weakref.ref(group)
    reference = _GROUPS[default]
    return None if reference is None else reference()


class PendingSum:
    """A few numbers of each rank, whose sums over all ranks of a group are computed in the background.

    A 1 for "this rank can" makes a sum as large as the group if all ranks can; otherwise the sum says how many cannot.

    Args:
        numbers: the numbers of this rank; every rank has as many.
        group: a process group; None is the default one.
        device: where its backend takes tensors.
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
        """Return the sums over all ranks; wait until the last rank has sent its numbers.

        Raises:
            RuntimeError: a rank has ended; :class:`~ddpfix.ranks.failures.first_failure.PeerFailedError` if
                it left a cause.
        """
        try:
            self._work.wait()
        except RuntimeError as error:
            cause = first_failure.cause()
            if cause is None:
                raise
            raise first_failure.PeerFailedError(cause) from error
        sums: List[int] = self._numbers.tolist()
        return sums
