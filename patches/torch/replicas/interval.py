"""The interval between two comparisons, which take time."""

from __future__ import annotations

import contextlib
import math
from typing import Iterator, Tuple

from ddpfix.system import System

# The share of a run's time that looking may take: where a look takes longer, fewer steps are looked at.
_SHARE = 0.001
# A run may be short: its steps 1, 2, 4 and 8 are looked at, whatever that takes.
_FIRST = 8


class Pace:
    """How often to look, so that looking takes at most a small share of the run.

    Args:
        every: the least number of steps between two looks.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._begun: Tuple[int, float] = (0, System.perf_counter())
        # Seconds that were spent since then, without those of the block that is open, and when that began.
        self._spent, self._since = 0.0, 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time in here as spent: to look, to publish, and to compare."""
        self._since = System.perf_counter()
        yield
        self._spent += System.perf_counter() - self._since

    def steps(self, done: int) -> int:
        """After how many steps to look again; called within :meth:`timed`.

        Args:
            done: how many steps there were so far.
        """
        (before, begun), now = self._begun, System.perf_counter()
        spent = self._spent + now - self._since
        self._begun, self._since, self._spent = (done, now), now, 0.0
        step = (now - begun - spent) / max(1, done - before)
        if done < _FIRST:
            return min(done, self._every)
        return max(self._every, math.ceil(spent / (_SHARE * max(step, 1e-6))))
