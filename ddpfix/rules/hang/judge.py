"""Finds the ranks that do not wait while others do, from the position of each rank alone.

torch's count of the collectives of a group is compared, in which gloo has what goes from one rank to another as well.
So it only orders what is seen, and no rank is said to owe a collective because of it.
"""

from __future__ import annotations

import itertools
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ddpfix.rules import differences, facts
from ddpfix.rules.facts import Position, SilentRank
from ddpfix.rules.finding import Finding
from ddpfix.rules.hang import sentences

# Those of which the first that applies is the cause: a late rank may wait for one that is gone.
_ABSENT = (facts.GONE, facts.STOPPED, facts.TRACED, facts.LEFT)
# Kinds that are guesses, and of which a count of backwards, or of collectives, knows better.
_GUESSES = (
    sentences.UNEVEN,
    sentences.SOME_ONLY,
    sentences.MISMATCH,
    sentences.NETWORK,
    sentences.ABSENT,
    sentences.SLOW,
)
# Ranks that differ in more ways than these are no case of one call too many.
_CASES = 6


def judge(positions: Mapping[int, Position], absent: Sequence[SilentRank], limit: float) -> Optional[Finding]:
    """Return the fault of a job; None if none is seen."""
    waits = [each for each in positions.values() if each.may_wait()]
    # A call that gives up by itself: programs catch its error at the end of an epoch, to learn that a rank has no batch
    # left (CosyVoice, WeNet).
    ends = any(each.patience is not None and each.still < each.patience <= facts.SOON for each in waits)
    if ends or not any(each.still >= 0.9 * limit for each in waits):
        return None
    if all(each.peer is not None for each in waits):
        # Each waits for one rank, and nobody for the others.
        named = {each.peer for each in waits} | {each.rank for each in waits}
        positions = {rank: each for rank, each in positions.items() if rank in named}
        absent = [each for each in absent if each.rank in named]
    found = _first(positions, absent, waits, limit)
    if found is None:
        return None
    is_debugged = any(each.phase == facts.DEBUGGER for each in positions.values())
    found = found._replace(may_end=not is_debugged and all(each.how != facts.TRACED for each in absent))
    if found.kind not in _GUESSES:
        return found
    done = {each.rank: each.work for each in absent}
    for each in positions.values():
        # Gradients of the backward that a rank stands in may still come.
        done[each.rank] = each.work._replace(missed=each.work.missed and each.phase != facts.BACKWARD)
    differ = differences.backwards(done)
    if differ:
        return found._replace(kind=sentences.BACKWARDS, advice=differ)
    return found if found.kind == sentences.SLOW else _shifted(found, [*positions.values(), *absent])


def _shifted(found: Finding, ranks: Sequence[Union[Position, SilentRank]]) -> Finding:
    """Return a finding, or in its place the line at which ranks have called a collective that the others have not."""
    # Ranks that have called the same, and stand at the same line, are one case: there are few, of thousands of ranks.
    cases: Dict[Tuple[Tuple[Tuple[str, int], ...], str], List[int]] = {}
    for each in ranks:
        if each.called.counts:
            at = each.called.last if isinstance(each, Position) and each.call else ""
            cases.setdefault((tuple(sorted(each.called.counts.items())), at), []).append(each.rank)
    for one, other in itertools.permutations(list(cases)[:_CASES], 2):
        more = differences.one_call_more(dict(one[0]), one[1], dict(other[0]), other[1])
        if more is not None:
            same = [case for case in cases if dict(case[0]).get(more[0]) == dict(one[0])[more[0]]]
            return sentences.describe_shift(found, sorted(rank for case in same for rank in cases[case]), *more)
    return found


def _first(
    positions: Mapping[int, Position], absent: Sequence[SilentRank], waits: List[Position], limit: float
) -> Optional[Finding]:
    """Return the first rule's finding that applies."""
    for how in _ABSENT:
        those = [each for each in absent if each.how == how]
        if those:
            return sentences.describe_absent(how, those, waits)
    # Who has come just now may be the one whom the others have waited for.
    is_fresh = any(each.still < 0.3 * limit for each in waits)
    found = _late(positions, waits) or (None if is_fresh else _unequal(waits) or _different(positions, waits))
    if found is None and absent:
        return sentences.describe_absent(facts.SILENT, absent, waits)
    # Whoever waits for a GPU spins, and uses a processor.
    all_wait = len(waits) == len(positions) and all(each.idle or each.phase == facts.DEVICE for each in waits)
    return found or (sentences.describe_all_waiting(waits) if all_wait and not is_fresh else None)


def _late(positions: Mapping[int, Position], waits: List[Position]) -> Optional[Finding]:
    """Return the ranks that do not wait, and for which torch counts fewer collectives than for one that does.

    Without counts those that do not wait.
    """
    # The most of each group: with thousands of ranks, not each of them is compared with each other one.
    most: Dict[str, int] = {}
    for one in waits:
        for name, count in one.counts.items():
            most[name] = max(count, most.get(name, count))
    is_uncounted = any(one.what in facts.POINT_TO_POINT for one in waits)
    late = []
    for each in positions.values():
        # One that waits for its GPU, or computes, has not called what the others have: it is late in any case.
        goes_on = not each.may_wait()
        is_behind = differences.has_begun_more(most, each.counts) and (goes_on or each.phase == facts.DEVICE)
        if is_behind or (goes_on and (is_uncounted or not each.counts)):
            late.append(each)
    debugged = [each for each in late if each.phase == facts.DEBUGGER]
    those = debugged or late or [each for each in positions.values() if each.phase == facts.ENDED]
    others = [each for each in waits if each not in those]
    return sentences.describe_late(those, others) if those and others else None


def _unequal(waits: Sequence[Position]) -> Optional[Finding]:
    """Return ranks that wait, with different counts of the collectives of one group."""
    for group in sorted({name for each in waits for name in each.counts}):
        by_number: Dict[int, List[Position]] = {}
        for each in waits:
            if group in each.counts:
                by_number.setdefault(each.counts[group], []).append(each)
        if len(by_number) > 1:
            sets = sorted(by_number.items(), key=lambda one: (len(one[1]), -one[0]))
            rest = [each for _, ranks in sets[1:] for each in ranks]
            # What each of them is in tells more than the numbers, where the program has called it.
            if {sentences.kind(each) for each in sets[0][1]} & {sentences.kind(each) for each in rest}:
                return sentences.describe_count_mismatch(sets[0][1], rest, (sets[0][0], sets[1][0]))
    return None


def _different(positions: Mapping[int, Position], waits: List[Position]) -> Optional[Finding]:
    """Return ranks that wait in different calls."""
    certain = [each for each in waits if each.phase == facts.COLLECTIVE or (each.idle and not each.may_compute())]
    kinds: Dict[str, List[Position]] = {}
    for each in certain:
        kinds.setdefault(sentences.kind(each), []).append(each)
    if len(kinds) > 1:
        return sentences.describe_mismatch(sorted(kinds.values(), key=lambda ranks: (len(ranks), ranks[0].rank)))
    # Whoever is in no collective has come out of the one in which the others are, as is possible with other sizes.
    outside = [each for each in positions.values() if not each.may_wait() and each.phase != facts.ENDED]
    called = [each for each in certain if each.call or each.idle]
    if called and outside and all(each.since >= 0.5 * called[0].since for each in outside):
        return sentences.describe_returned(outside, called)
    return None
