"""In what two ranks differ: how often they call backward, and which loop they are in.

DDP averages in a backward, so ranks that call backward different numbers of times have all-reduces of different steps
meet, and in the end one waits for another that has none left. A count of forwards does not show it.
"""

from __future__ import annotations

from typing import Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ddpfix.rules.facts import Standing, TrainingProgress

# A loss that is not finite stays so times zero, and so do its gradients.
_SKIPPED = "Skip a batch on all ranks or on none: all_reduce the decision"
_ZERO = "Add the output times zero to the loss there (loss + output.sum() * 0)"
EQUALLY_OFTEN = (
    "Call backward equally often on all ranks (loss * 0 without a batch), and stop the loop on all ranks together"
)
LEAVE_NO_SYNC = (
    "Leave no_sync for the last backward before a step (accelerate: one accumulate(a, b), not one inside another)"
)


def backwards(works: Mapping[int, TrainingProgress]) -> str:
    """Return in what ranks differ that call backward different numbers of times, with what to do; "" if they do not."""
    known = {rank: work for rank, work in works.items() if work.backwards}
    if len(known) < 2:
        return ""
    return _skipped(known) or _missed(known)


def _skipped(works: Dict[int, TrainingProgress]) -> str:
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


def _missed(works: Dict[int, TrainingProgress]) -> str:
    """Return the same of the last forward, after which another rank waits for gradients of all."""
    missed = [rank for rank, work in works.items() if work.missed]
    steps = {work.step for work in works.values()}
    return _unreached(missed[0], "its last forward") if 0 < len(missed) < len(works) and len(steps) == 1 else ""


def _unreached(rank: int, which: str) -> str:
    return (
        f"On rank {rank} no gradient reached the model after {which}: the loss does not depend on its output. {_ZERO}"
    )


def has_begun_more(ours: Mapping[str, int], theirs: Mapping[str, int]) -> bool:
    """Return whether torch counts more of a common group for us than for another rank."""
    return any(count > theirs[name] for name, count in ours.items() if name in theirs)


def _apart(one: Sequence[Standing], other: Sequence[Standing]) -> Optional[Tuple[Standing, Standing]]:
    """Return the function in which two ranks stand at different lines; None where there is none."""
    for mine, others in zip(one, other):
        if mine[:2] != others[:2]:
            return None
        if mine[2] != others[2]:
            return mine, others
    return None


def shared_loop(one: Sequence[Standing], other: Sequence[Standing]) -> bool:
    """Return whether two ranks part in the body of one loop: neither has left it."""
    apart = _apart(one, other)
    return apart is not None and bool(apart[0][3]) and apart[0][3] == apart[1][3]


def left_loop(one: Sequence[Standing], other: Sequence[Standing]) -> Optional[Tuple[str, int, bool]]:
    """Return the loop that one rank is past and another in (file, line, whether a loop is around both), or None."""
    apart = _apart(one, other)
    return None if apart is None else next(_left_loop(*apart), None)


def _left_loop(mine: Standing, others: Standing) -> Iterator[Tuple[str, int, bool]]:
    for start, end in others[3]:
        if (start, end) not in mine[3]:
            if mine[2] > end:
                yield mine[0], start, bool(mine[3])
            return
