"""In what two ranks differ: how often they call backward, which collectives they call, which loop they are in.

DDP averages in a backward, so ranks that call backward different numbers of times have all-reduces of different steps
meet, and in the end one waits for another that has none left. A count of forwards does not show it.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence, Tuple

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
    least, most = min(known, key=lambda rank: known[rank].skipped), max(known, key=lambda rank: known[rank].skipped)
    one, other = known[most], known[least]
    number, fewer = one.skipped - other.skipped, other.backwards - one.backwards
    place = f" near {one.place}" if one.place else ""
    if number and not fewer and one.step == other.step:
        return _unreached(most, f"{'a forward' if number == 1 else f'{number} forwards'}{place}")
    # One that makes further forwards for a log has as many backwards as the others.
    if number and fewer and number <= fewer <= number + 1:
        counts = f"{_times(one)} forwards on rank {most}, {_times(other)} on rank {least}"
        what = "one" if number == 1 else str(number)
        return f"Backward was called {counts}: rank {most} skipped {what}{place}. {_SKIPPED}"
    # Of the last forward, after which another rank waits for gradients of all.
    missed, steps = [rank for rank, work in known.items() if work.missed], {work.step for work in known.values()}
    return _unreached(missed[0], "its last forward") if 0 < len(missed) < len(known) and len(steps) == 1 else ""


def _times(work: TrainingProgress) -> str:
    return f"{'once' if work.backwards == 1 else f'{work.backwards} times'} in {work.step}"


def _unreached(rank: int, which: str) -> str:
    return (
        f"On rank {rank} no gradient reached the model after {which}: the loss does not depend on its output. {_ZERO}"
    )


def one_call_more(here: Dict[str, int], at: str, there: Dict[str, int], other_at: str) -> Optional[Tuple[str, int]]:
    """Return the line that one rank has called more often than another, and how often; None where that is not certain.

    The calls of both are shifted by these: the other rank is ahead by as many, at the line where one of the two waits.
    Branches in which ranks call the same collective at different lines differ at a line where nobody waits.

    Args:
        here, there: the calls of both by line.
        at, other_at: the lines where they wait; "" for a rank that does not.
    """
    apart = {line: here.get(line, 0) - there.get(line, 0) for line in {*here, *there}}
    more = {line: number for line, number in apart.items() if number > 0}
    fewer = {line: -number for line, number in apart.items() if number < 0}
    if (
        len(more) != 1
        or at in more
        or not set(fewer) <= {at, other_at}
        or fewer
        and sum(fewer.values()) > sum(more.values())
    ):
        return None
    return next(iter(more.items()))


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
    mine, others = _apart(one, other) or (None, None)
    if mine is None or others is None:
        return None
    inner = [loop for loop in others[3] if loop not in mine[3]]
    return (mine[0], inner[0][0], bool(mine[3])) if inner and mine[2] > inner[0][1] else None
