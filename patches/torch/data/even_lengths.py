"""All ranks synchronise in an iteration of their loaders, and then take as many batches of it."""

from __future__ import annotations

import contextlib
import functools
import weakref
from datetime import timedelta
from typing import Any, Iterator, List, Optional, Tuple

from torch.utils import data

from ddpfix import log
from ddpfix.exchange import roll_call
from ddpfix.exchange.keys import count, default_store, has, keys, look_until, put
from ddpfix.groups import timeouts
from ddpfix.uneven import async_sum
from ddpfix.uneven import loader as even
from ddpfix.uneven.async_sum import PendingSum

from ..internals import process_groups
from ..pipeline.step_count import Clocks

# Seconds for which ranks wait for each other once a pass, and after which one looks whether another one has left.
_LIMIT, _LOOK = 30.0, 1.0
# Seconds between two looks whether the numbers of the other ranks have come.
_PAUSE = (0.0002, 0.02)
# Far beyond what torch itself waits for in a step: not to be the first to give up.
_TIMEOUT = timedelta(hours=24)
_UNKNOWN = -1
# Samplers whose length is that of what they give.
_COUNTED: Tuple[Any, ...] = (
    data.BatchSampler,
    data.DistributedSampler,
    data.RandomSampler,
    data.SequentialSampler,
    data.SubsetRandomSampler,
    data.WeightedRandomSampler,
)


class IterationEndedError(Exception):
    """Another rank has left the pass in its midst, and trains on. ``batch`` is this rank's next one, or NOTHING."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch


class Synchronised:
    """Ranks that synchronise in iterations of their loaders; it is ``over`` if they did not once."""

    def __init__(self, forwards: Clocks) -> None:
        self.forwards, self.over = forwards, False

    def give_up(self, why: str) -> None:
        """They do not any more, and this line says why."""
        self.over = True
        log.on_every_rank(why)


def batches(
    meetings: Synchronised, source: Any, loader: Any, asker: str, given: int, stop: bool
) -> Optional[Iterator[Any]]:
    """Return the rest of a pass, as many batches as on the other ranks; None where it is to be left as it is.

    Args:
        source: the rest of this rank's own batches; begun again, they are read from the beginning.
        given: how many batches this rank has had in this pass.
    """
    store = default_store()
    if meetings.over or store is None:
        return None
    # Two loops over different loaders are not the same place.
    loop = f"{asker} {type(loader.dataset).__name__} {loader.batch_size} {given}"
    place = f"uneven/{count(store, 'uneven')}/{meetings.forwards.begun}/{loop}"
    # Another rank that waits in a collective meanwhile is not to run into its limit.
    limit = min(_LIMIT, (timeouts.shortest() or _LIMIT) / 4)
    if not roll_call.all_come(place, process_groups.ranks_of(None), limit):
        meetings.give_up(
            f"not all ranks asked for batch {given + 1} of a {type(loader.dataset).__name__} after the same training"
            f" step (waited up to {limit:g} s). DDPFIX_UNEVEN is off from here on"
        )
        return None
    group = async_sum.cpu_group(_TIMEOUT)
    if group is None:
        meetings.give_up("DDPFIX_UNEVEN is off: it needs gloo, which is unavailable here")
        return None
    numbers = [row[0] for row in async_sum.gathered([_left(source, loader, given)], group=group)]
    if _UNKNOWN in numbers:
        return Streamed(meetings, source, given, stop, group, place)
    if len(set(numbers)) == 1:
        return None
    target = min(numbers) if stop else max(numbers)
    log.info(even.line([given + number for number in numbers], given + target))
    return even.Counted(source, target)


def _left(source: Any, loader: Any, given: int) -> int:
    """Return how many batches a pass has still to give; what is no class of torch's own may count them wrongly."""
    sampler = loader.batch_sampler
    if isinstance(loader.dataset, data.IterableDataset) or type(loader.sampler) not in _COUNTED:
        return _UNKNOWN
    if sampler is not None and type(sampler) is not data.BatchSampler:
        return _UNKNOWN
    return max(0, len(loader) - given)


class Streamed(even.StreamEpoch):
    """Ranks agree one batch ahead.

    Args:
        given: how many it has had in this pass.
        stop: whether all ranks end with the first one that has no more.
        place: the name of this pass, on all ranks.
    """

    def __init__(self, meetings: Synchronised, source: Any, given: int, stop: bool, group: Any, place: str) -> None:
        super().__init__(source, stop, group)
        self._meetings = meetings
        self.steps = given
        self._place = place
        # The batches that the program has had; none any more where the pass is over.
        self._progress: List[int] = [given]
        # A loop that is broken off drops the iterator.
        weakref.finalize(source.iterator, _dropped, meetings.forwards, place, self._progress).atexit = False

    def __next__(self) -> Any:
        batch = super().__next__()
        self._progress[:] = [self.steps]
        return batch

    def ended(self) -> None:
        self._progress.clear()
        super().ended()

    def received(self, pending: PendingSum) -> List[int]:
        """Return the sums; IterationEndedError: another rank has left the pass in its midst."""
        looked = [_LOOK]

        def gives_up(waited: float) -> bool:
            if waited < looked[0]:
                return False
            looked[0] = waited + _LOOK
            return _has_left(self._place, self.steps)

        if look_until(pending.is_ready, gives_up, _PAUSE):
            return pending.result()
        self._meetings.give_up(
            f"another rank left its loop over a loader before step {self.steps + 1}, and goes on training."
            " DDPFIX_UNEVEN is off from here on"
        )
        raise IterationEndedError(self.batch if self.fresh else even.NOTHING)


def _dropped(forwards: Clocks, place: str, progress: List[int]) -> None:
    # The store is not asked here, in the midst of anything. Mostly all ranks leave in the same step.
    if progress:
        forwards.at_next(functools.partial(_leave, place, progress[0]))


def _leave(place: str, steps: int) -> None:
    store = default_store()
    if store is not None:
        put(keys(store, place), "left", str(steps))


def _has_left(place: str, steps: int) -> bool:
    """Return whether a rank has left the pass before it sent the numbers of the batch after so many steps."""
    with contextlib.suppress(Exception):
        # Without a store there is nobody to wait for: the collective ends with an error.
        own = keys(default_store(), place)
        return has(own, "left") and int(own.get("left")) < steps
    return False
