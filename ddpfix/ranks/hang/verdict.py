"""Finds the ranks that do not wait while others do, from the position of each rank alone.

torch's count of the collectives of a group is compared, in which gloo has what goes from one rank to another as well.
So it only orders what is seen, and no rank is said to owe a collective because of it.
"""

from __future__ import annotations

import itertools
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ddpfix.ranks.groups import called, calls, internals, work
from ddpfix.ranks.groups.calls import POINT_TO_POINT
from ddpfix.ranks.groups.work import Work
from ddpfix.ranks.hang import places, words
from ddpfix.ranks.hang.position import GONE, LEFT, SILENT, STOPPED, TRACED, Absent, Position

# Those of which the first that applies is the cause: a late rank may wait for one that is gone.
_ABSENT = (GONE, STOPPED, TRACED, LEFT)
# Causes that are guesses, and of which a count knows better.
_MAY_BE_BACKWARDS = (words.UNEVEN, words.SOME_ONLY, words.MISMATCH, words.NETWORK, words.ABSENT, words.SLOW)

# Ranks that differ in more ways than these are no case of one call too many.
_CASES = 6


class Verdict(NamedTuple):
    """What is said.

    Attributes:
        cause: in one word, of those in :mod:`.words`.
        ranks: the ones that the others wait for, or that do something else than the others.
        may_end: whether the job may be ended: not while somebody debugs it.
    """

    cause: str
    ranks: List[int]
    text: str
    may_end: bool


def judge(positions: Mapping[int, Position], absent: Sequence[Absent], limit: float) -> Optional[Verdict]:
    """Return the fault of a job; None if none is seen."""
    waiting = [each for each in positions.values() if each.may_wait()]
    if not any(each.still >= 0.9 * limit for each in waiting) or any(map(_ends_by_itself, waiting)):
        return None
    if all(each.peer is not None for each in waiting):
        # Each waits for one rank, and nobody for the others.
        named = {each.peer for each in waiting} | {each.rank for each in waiting}
        positions = {rank: each for rank, each in positions.items() if rank in named}
        absent = [each for each in absent if each.rank in named]
    # Who has come just now may be the one whom the others have waited for.
    fresh = [each for each in waiting if each.still < 0.3 * limit]
    found = _absent(absent, waiting) or _late(positions, waiting)
    if found is None and not fresh:
        found = _different(positions, waiting)
    if found is None and absent:
        found = words.absent(SILENT, absent, waiting)
    if found is None and not fresh:
        found = _nobody(positions, waiting)
    if found is None:
        return None
    found = _with_shift(_with_backwards(found, positions, absent), positions, absent)
    cause, ranks, text, advice = found
    debugged = any(each.phase == places.DEBUGGER for each in positions.values())
    return Verdict(
        cause,
        ranks,
        f"{text}.{_break(text)}{advice}" if advice else text,
        not debugged and all(each.how != TRACED for each in absent),
    )


def _break(text: str) -> str:
    """Return what stands between a text and its advice: a new line, unless the last one has room for both."""
    return " " if text.rpartition("\n")[2][:1].isupper() else "\n"


def _with_backwards(found: words.Found, positions: Mapping[int, Position], absent: Sequence[Absent]) -> words.Found:
    """Return a cause, or in its place that ranks call backward different numbers of times, as all have counted."""
    if found.cause not in _MAY_BE_BACKWARDS:
        return found
    done = {each.rank: _done(each) for each in positions.values()}
    done.update((each.rank, each.work) for each in absent)
    differ = work.difference(done)
    return found._replace(cause=words.BACKWARDS, advice=differ) if differ else found


def _with_shift(found: words.Found, positions: Mapping[int, Position], absent: Sequence[Absent]) -> words.Found:
    """Return a cause, or in its place the line at which ranks have called a collective that the others have not."""
    if found.cause not in (words.UNEVEN, words.SOME_ONLY, words.MISMATCH, words.ABSENT, words.NETWORK):
        return found
    # Ranks that have called the same, and stand at the same line, are one case: there are few, of thousands of ranks.
    cases: Dict[Tuple[Tuple[Tuple[str, int], ...], str], List[int]] = {}
    ranks: List[Union[Position, Absent]] = [*positions.values(), *absent]
    for each in ranks:
        if each.called.counts:
            at = each.called.last if isinstance(each, Position) and each.call else ""
            cases.setdefault((tuple(sorted(each.called.counts.items())), at), []).append(each.rank)
    for one, other in itertools.permutations(list(cases)[:_CASES], 2):
        more = called.one_more(dict(one[0]), one[1], dict(other[0]), other[1])
        if more is not None:
            place, number = more
            same = [case for case in cases if dict(case[0]).get(place) == dict(one[0])[place]]
            return words.shifted(found, sorted(rank for case in same for rank in cases[case]), place, number)
    return found


def _done(each: Position) -> Work:
    """Return what a rank has done; gradients of the backward that it stands in may still come."""
    return each.work._replace(missed=False) if each.phase == places.BACKWARD else each.work


def _ends_by_itself(each: Position) -> bool:
    """Return whether a rank waits in a call that gives up by itself, and names the ranks that are late.

    Programs catch its error at the end of an epoch, to learn that a rank has no batch left (CosyVoice, WeNet).
    """
    return each.patience is not None and each.still < each.patience <= calls.SOON


def _absent(absent: Sequence[Absent], waiting: List[Position]) -> Optional[words.Found]:
    for how in _ABSENT:
        those = [each for each in absent if each.how == how]
        if those:
            return words.absent(how, those, waiting)
    return None


def _late(positions: Mapping[int, Position], waiting: List[Position]) -> Optional[words.Found]:
    """Return the ranks that do not wait, and for which torch counts fewer collectives than for one that does."""
    ended = [each for each in positions.values() if each.phase == places.ENDED]
    behind = behind_of(positions, waiting)
    # One that waits for its GPU, or computes, has not called what the others have: it is late in any case.
    late = [
        each
        for each in positions.values()
        if each.rank in behind and (each.phase == places.DEVICE or not each.may_wait())
    ]
    debugged = [each for each in late if each.phase == places.DEBUGGER]
    those = debugged or late or ended
    others = [each for each in waiting if each not in those]
    return words.late(those, others, positions) if those and others else None


def behind_of(positions: Mapping[int, Position], waiting: Sequence[Position]) -> Set[int]:
    """Return the ranks with fewer collectives of a group than one that waits; without counts, who does not wait."""
    found: Set[int] = set()
    # The most of each group: with thousands of ranks, not each of them is compared with each other one.
    most: Dict[str, int] = {}
    for one in waiting:
        for name, count in one.counts.items():
            most[name] = max(count, most.get(name, count))
    uncounted = any(one.what in POINT_TO_POINT for one in waiting)
    for each in positions.values():
        if internals.is_beyond(most, each.counts) or (uncounted or not each.counts) and not each.may_wait():
            found.add(each.rank)
    return found


def _different(positions: Mapping[int, Position], waiting: List[Position]) -> Optional[words.Found]:
    """Ranks that wait in different calls."""
    unequal = _unequal(waiting)
    if unequal is not None:
        return unequal
    certain = [each for each in waiting if each.phase == places.COLLECTIVE or (each.idle and not each.may_compute())]
    kinds: Dict[str, List[Position]] = {}
    for each in certain:
        kinds.setdefault(words.kind(each), []).append(each)
    if len(kinds) > 1:
        return words.different(sorted(kinds.values(), key=lambda ranks: (len(ranks), ranks[0].rank)))
    # Whoever is in no collective has come out of the one in which the others are, as is possible with other sizes.
    outside = [each for each in positions.values() if not each.may_wait() and each.phase != places.ENDED]
    called = [each for each in certain if each.call or each.idle]
    if called and outside and all(each.since >= 0.5 * called[0].since for each in outside):
        return words.outside(outside, called)
    return None


def _unequal(waiting: Sequence[Position]) -> Optional[words.Found]:
    """Ranks that wait, with different counts of the collectives of one group."""
    for group in sorted({name for each in waiting for name in each.counts}):
        by_number: Dict[int, List[Position]] = {}
        for each in waiting:
            if group in each.counts:
                by_number.setdefault(each.counts[group], []).append(each)
        if len(by_number) > 1:
            sets = sorted(by_number.items(), key=lambda one: (len(one[1]), -one[0]))
            rest = [each for _, ranks in sets[1:] for each in ranks]
            # What each of them is in tells more than the numbers, where the program has called it.
            if {words.kind(each) for each in sets[0][1]} & {words.kind(each) for each in rest}:
                return words.beyond(sets[0][1], rest, (sets[0][0], sets[1][0]))
    return None


def _nobody(positions: Mapping[int, Position], waiting: List[Position]) -> Optional[words.Found]:
    """Describe ranks that all wait in the same collective."""
    # Whoever waits for a GPU spins, and uses a processor.
    if len(waiting) == len(positions) and all(each.idle or each.phase == places.DEVICE for each in waiting):
        # Where all collectives have ended, the GPUs compute.
        return None if all(map(_computes, waiting)) else words.nobody(waiting)
    return None


def _computes(each: Position) -> bool:
    """Return whether a rank waits for its GPU, and all collectives of its only group have ended."""
    return each.phase == places.DEVICE and list(each.counts.values()) == [each.ended]
