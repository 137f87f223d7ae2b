"""How ranks end: one fails, is killed, or leaves before the others, and what each of the others says of it."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from ddpfix.rules import differences, facts
from ddpfix.rules.facts import End
from ddpfix.rules.finding import BAD, PLAIN, Finding, several
from ddpfix.rules.hang.sentences import END_TOGETHER, ON_ALL_RANKS

# The kinds of findings: FOLLOWED is a failure that says no more than that another rank has ended, ABOVE refers to a
# line that was printed before.
FAILED, FOLLOWED, ABOVE, KILLED, SILENT = "failed", "followed", "above", "killed", "silent"
LEFT, STORE_LOST, UNRECORDED = "left", "store_lost", "unrecorded"
_LEAVES = {
    facts.LEFT: "left its process group",
    facts.ENDED: "reached the end of its program",
    facts.EXITED: "exited",
}
_MEMORY = (
    "dmesg, the scheduler or the container shows whether the host ran out of memory; smaller batches and fewer loader"
    " workers need less"
)


def failed(
    ranks: Sequence[int], step: Optional[int], error: str, explanation: str = "", follows: bool = False
) -> Finding:
    """Describe ranks that end with an error, and how ddpfix explains it."""
    where = f"{several(ranks)} failed{_in_step(step)}: {error}"
    return Finding(FOLLOWED if follows else FAILED, ranks, where, explanation)


def above(found: Finding) -> Finding:
    """Describe why a rank ends, by the beginning of a line that was printed before."""
    head, follows, _ = found.line.partition(": ")
    return Finding(ABOVE, (), f"this rank ends because {head}{' (above)' if follows else ''}")


def likewise(ranks: Sequence[int]) -> Finding:
    """Describe further ranks that end with an error that is known."""
    return Finding(FAILED, ranks, f"{several(ranks)} failed with the same error", level=PLAIN)


def consequence(ranks: Sequence[int]) -> Finding:
    """Describe ranks that failed because of others."""
    return Finding(FOLLOWED, ranks, f"{several(ranks)} failed as a consequence", level=PLAIN)


def _in_step(step: Optional[int]) -> str:
    return f" in step {step}" if step else ""


class Lost(NamedTuple):
    """A rank that has not said how it ends, and the rank that misses it.

    Attributes:
        process: its number and host, in words.
        step: of its last sign of life.
        by: the rank that misses it, in step ``by_step``.
    """

    rank: int
    process: str
    step: Optional[int]
    by: int
    by_step: Optional[int]

    def __str__(self) -> str:
        seen = f", last seen in step {self.step}" if self.step else ""
        return f"{seen}, rank {self.by} is in step {self.by_step}" if self.by_step else seen


def killed(lost: Lost, how: str, call: str) -> Finding:
    """Describe a rank whose process has exited without a word.

    Args:
        how: how the process has ended, in a sentence.
        call: the collective in which the rank that misses it has failed; "" for none.
    """
    where = f"rank {lost.rank} ended without a word{lost}: {lost.process} has exited"
    return Finding(KILLED, [lost.rank], where, f"{how}. Rank {lost.by} failed in {call}" if call else how)


def silent(lost: Lost, seconds: float) -> Finding:
    """Describe a rank that gives no sign of life, on whatever machine."""
    where = f"rank {lost.rank} is silent{lost}: {lost.process} has given no sign of life for {seconds:.0f} s"
    return Finding(SILENT, [lost.rank], where)


def store_lost(reason: str) -> Finding:
    """Describe the end of the store, in which the cause may have been."""
    where = f"{reason} before this rank could read the cause; it was rank 0, unless a launcher hosts the store"
    return Finding(STORE_LOST, (), where)


def left(end: End, here: End, calls: bool) -> Finding:
    """Describe a rank that has ended or left, and what to do where it has done less than the one that misses it.

    Args:
        here: what the rank that misses it has done.
        calls: whether that one has failed in a collective that its program calls.
    """
    told = end.text or f"rank {end.rank} {_LEAVES.get(end.how, end.how)}{_in_step(end.step)}"
    # The rank that misses it may have failed in a backward, whose gradients were still to come.
    differ = differences.backwards({end.rank: end.work, here.rank: here.work._replace(missed=False)})
    if differ:
        return Finding(LEFT, [end.rank], told, advice=differ)
    line = here.called.last
    if calls and end.called.counts and here.called.counts.get(line, 0) > end.called.counts.get(line, 0):
        where = f"{told}, without calling the collective in which this rank fails ({line})"
        return Finding(LEFT, [end.rank], where, advice=ON_ALL_RANKS)
    if end.step is None or here.step is None or here.step <= end.step:
        return Finding(LEFT, [end.rank], told)
    where = f"{told}, and this rank is in step {here.step}"
    return Finding(LEFT, [end.rank], where, advice=f"With uneven data, {END_TOGETHER}")


def unrecorded(ranks: Sequence[int], where: str, have_exited: bool, is_explained: bool) -> Finding:
    """Describe ranks whose trace has no exit record.

    Args:
        where: the step under way, or the last one in the trace; "" for none.
        have_exited: whether their processes are known to be gone.
        is_explained: whether another rank has failed or was killed: a launcher ends the others.
    """
    who, has, was = several(ranks), *(("has", "was") if len(ranks) == 1 else ("have", "were"))
    if is_explained:
        told = f"{who} {has} no exit record: a launcher ends the other ranks"
        return Finding(UNRECORDED, ranks, told, level=PLAIN)
    if have_exited:
        return Finding(UNRECORDED, ranks, f"{who} {was} killed{where} (no exit record)", advice=_MEMORY)
    told = f"{who} {has} no exit record: killed or still running{where} when this page was made"
    return Finding(UNRECORDED, ranks, told, level=BAD)
