"""Whether two epochs have the same order although their sampler shuffles: nobody has called its ``set_epoch``."""

from __future__ import annotations

import weakref
from typing import Any, Sequence

from ddpfix import log

from . import readings, sharding


class Orders:
    """The orders of the samplers that shuffle by epoch, in the last pass that trained and came to its end."""

    def __init__(self) -> None:
        self._last: weakref.WeakKeyDictionary[Any, readings.Reading] = weakref.WeakKeyDictionary()

    def stepped(self, reading: readings.Reading, ranks: Sequence[int]) -> bool:
        """Called after a step on a pass; returns whether nothing can come of it any more.

        Args:
            reading: the pass.
            ranks: of the group of the model that is trained.
        """
        sampler = reading.sampler
        if sampler is None:
            return reading.is_over()
        last = self._last.get(sampler)
        if last is reading or last is None or not last.ended:
            # A pass that was given up (a search for a learning rate) is begun again in the same order on purpose.
            self._last[sampler] = reading
            return reading.is_over()
        if not (reading.is_over() or len(reading.order()) >= len(last.order())):
            return False
        self._last[sampler] = reading
        if _repeats(last, reading) and sharding.own_rank() == ranks[0]:
            log.on_every_rank(_repeated(reading))
        return True


def _repeats(last: readings.Reading, reading: readings.Reading) -> bool:
    order = reading.order()
    known = None not in order and len(set(order)) > 1
    return known and order == last.order() and reading.epoch == last.epoch


def _repeated(reading: readings.Reading) -> str:
    name = type(reading.sampler).__name__
    return (
        f"a {name} with shuffle=True gave two epochs in a row the same order, because its epoch was {reading.epoch} in"
        f" both. Call its set_epoch(epoch) before each epoch {readings.OFF}"
    )
