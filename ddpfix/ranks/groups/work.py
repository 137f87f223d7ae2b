"""How much training a rank has done, and in what ranks differ that wait for each other.

DDP averages in a backward, so ranks that call backward different numbers of times have all-reduces of different steps
meet, and in the end one waits for another that has none left. A count of forwards does not show it.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional

# Rates of backwards in an optimizer step that are this far apart are no matter of where ranks stand in their steps.
_APART = 1.25
# A loss that is not finite stays so times zero, and so do its gradients.
_SKIPPED = "Skip a batch on all ranks or on none: all_reduce the decision"
_ZERO = "Add the output times zero to the loss there (loss + output.sum() * 0)"
EQUALLY_OFTEN = (
    "Call backward equally often on all ranks (loss * 0 without a batch), and stop the loop on all ranks together"
)
LEAVE_NO_SYNC = (
    "Leave no_sync for the last backward before a step (accelerate: one accumulate(a, b), not one inside another)"
)


class Work(NamedTuple):
    """What one rank has done.

    Attributes:
        step: the training forwards that it has begun; None where nothing counts them.
        backwards: the outermost backwards that it has begun; 0 where nothing counts them.
        optimizer_steps: the steps of optimizers that it has begun.
        skipped: how many training forwards had no backward, or none that reached the model, before the next one.
        place: the user's line of the forward after the last of these; "" where there were too many of them.
        waits: whether the last forward still waits for its backward.
        missed: whether backward was called after the last forward, and no gradient has reached the model.
    """

    step: Optional[int] = None
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: int = 0
    place: str = ""
    waits: bool = False
    missed: bool = False

    def ended(self) -> Work:
        """Return the same of a rank whose program is over: the backward of its last forward will not come."""
        return self._replace(skipped=self.skipped + self.waits, waits=False)


def difference(works: Mapping[int, Work]) -> str:
    """Return in what ranks differ that call backward different numbers of times, with what to do; "" if they do not."""
    known = {rank: work for rank, work in works.items() if work.backwards}
    if len(known) < 2:
        return ""
    return _skipped(known) or _missed(known) or _rates(known)


def _skipped(works: Dict[int, Work]) -> str:
    least, most = min(works, key=lambda rank: works[rank].skipped), max(works, key=lambda rank: works[rank].skipped)
    number = works[most].skipped - works[least].skipped
    if not number:
        return ""
    place = f" near {works[most].place}" if works[most].place else ""
    one, other = works[most], works[least]
    # One that makes further forwards for a log has as many backwards as the others.
    if not number <= other.backwards - one.backwards <= number + 1 and one.backwards != other.backwards:
        return ""
    if one.backwards == other.backwards and one.step != other.step:
        return ""
    if one.backwards == other.backwards:
        return _unreached(most, f"{'a forward' if number == 1 else f'{number} forwards'}{place}")
    what = "one" if number == 1 else str(number)
    counts = ", ".join(
        f"{_times(works[rank].backwards)} in {works[rank].step} forwards on rank {rank}" for rank in (most, least)
    )
    return f"Backward was called {counts}: rank {most} skipped {what}{place}. {_SKIPPED}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _missed(works: Dict[int, Work]) -> str:
    """Return the same of the last forward, after which another rank waits for gradients of all."""
    missed = [rank for rank, work in works.items() if work.missed]
    steps = {work.step for work in works.values()}
    return _unreached(missed[0], "its last forward") if 0 < len(missed) < len(works) and len(steps) == 1 else ""


def _unreached(rank: int, which: str) -> str:
    return (
        f"On rank {rank} no gradient reached the model after {which}: the loss does not depend on its output. {_ZERO}"
    )


def _rates(works: Dict[int, Work]) -> str:
    rates = {rank: work.backwards / work.optimizer_steps for rank, work in works.items() if work.optimizer_steps > 1}
    if len(rates) < 2:
        return ""
    least, most = min(rates, key=lambda rank: rates[rank]), max(rates, key=lambda rank: rates[rank])
    steps = abs(works[most].optimizer_steps - works[least].optimizer_steps)
    if steps < 2 or rates[most] < _APART * rates[least]:
        return ""
    counts = ", ".join(
        f"{works[rank].backwards} times in {works[rank].optimizer_steps} optimizer steps on rank {rank}"
        for rank in (most, least)
    )
    return f"Backward was called {counts}: gradients of different steps are averaged.\n{EQUALLY_OFTEN}"
