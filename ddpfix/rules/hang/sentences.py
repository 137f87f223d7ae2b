"""The sentences about ranks that wait: which ones do something else, where the others wait, and what to check."""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Sequence, Tuple

from ddpfix.rules import facts
from ddpfix.rules.differences import left_loop, shared_loop
from ddpfix.rules.facts import Position, SilentRank
from ddpfix.rules.finding import Finding, several

# The kinds of findings.
BACKWARDS, DEBUGGER, UNEVEN, LOADER, EVALUATION = "backwards", "debugger", "uneven", "loader", "evaluation"
SAVE, SOME_ONLY, MISMATCH, ABSENT, SLOW, NETWORK = "save", "some_ranks_only", "mismatch", "absent", "slow", "network"
ALONE = "alone"
KINDS = (BACKWARDS, DEBUGGER, UNEVEN, LOADER, EVALUATION, SAVE, SOME_ONLY, MISMATCH, ABSENT, SLOW, NETWORK, ALONE)
END_TOGETHER = "DDPFIX_UNEVEN=stop or pad ends the epoch on all ranks together"
ON_ALL_RANKS = "Call it on all ranks or on none"
_UNEVEN = f"Uneven data? {END_TOGETHER}"
# Where no loader is in use, whose batches could be uneven.
_EARLY = (
    "Did the loop end earlier on some ranks (early stop, time limit, different data)? Take that decision on all ranks"
    " together (all_reduce a flag)"
)
_SOME_ONLY = f"A collective on some ranks only (a log, a metric, a save)? {ON_ALL_RANKS}"
# How a rank is that does not answer, and what to do.
_ABSENT = {
    facts.GONE: ("ended without a word: {} has exited", ""),
    facts.STOPPED: ("is stopped (SIGSTOP): {}", "kill -CONT resumes it"),
    facts.TRACED: ("is held by a debugger: {}", "A debugger holds it: ddpfix ends no process"),
    facts.SILENT: (
        "does not answer: {}",
        "C code that holds the GIL, a machine that is down, or a program without ddpfix?",
    ),
}
_LEAVES = {facts.LEFT: "has left its process group", facts.FAILED: "has failed"}
_RETURNS = "has reached the end of its program"


def kind(each: Position) -> str:
    """Return the kind of a collective: its function and sizes, else the function that waits for it."""
    return each.call or each.what


def describe_absent(how: str, those: Sequence[SilentRank], waiting: Sequence[Position]) -> Finding:
    """Ranks that do not answer."""
    told: List[str] = []
    for each in those[:3]:
        end, process = each.end, each.process or "ddpfix is not active there"
        away = _LEAVES.get(end.how, _RETURNS) + _after(end.step) if end else _ABSENT[how][0].format(process)
        told.append(f"rank {each.rank} {away}")
    ranks, end = [each.rank for each in those], those[0].end
    more = f"; likewise {several(ranks[3:])}" if len(ranks) > 3 else ""
    is_uneven = end is not None and _is_behind(end.step, waiting)
    advice = _uneven(waiting) if is_uneven else those[0].hint or ("" if end else _ABSENT[how][1])
    text = ";\n".join(told)
    return Finding(UNEVEN if is_uneven else ABSENT, ranks, f"{text}{more};\n{_waiters(waiting)}", advice=advice)


def _uneven(waiting: Sequence[Position]) -> str:
    return _UNEVEN if any(each.loads for each in waiting) else _EARLY


def _is_behind(step: Optional[int], waiting: Sequence[Position]) -> bool:
    """Return whether a rank was done with its training before one that waits."""
    return step is not None and any(other.step is not None and step < other.step for other in waiting)


def describe_late(those: Sequence[Position], waiting: Sequence[Position]) -> Finding:
    """Ranks that the others wait for."""
    first = those[0]
    cause, advice = _cause(first, waiting)
    past = _past([first], waiting) if cause == UNEVEN else ""
    told = f"{_late(those)};\n{_waiters(waiting)}" + (f".\n{past}" if past else "")
    return Finding(cause, [each.rank for each in those], told, advice=advice)


def _late(those: Sequence[Position]) -> str:
    told = [_one(each) for each in those[:3]]
    if len(those) > 3:
        told.append(f"not waiting either: {several([each.rank for each in those[3:]])}")
    return ";\n".join(told)


def _one(each: Position) -> str:
    if each.phase == facts.ENDED:
        return f"the main thread of rank {each.rank} has ended{_after(each.step)}"
    how = "is" if each.moving else "has been"
    seconds = each.since if each.moving else each.still
    for_ = f"and has begun no collective for {seconds:.0f} s" if each.moving else f"for {seconds:.0f} s"
    trouble = f" ({each.trouble})" if each.trouble else ""
    return f"rank {each.rank} {how} {_doing(each)} ({_line(each)}) {for_}{_since(each)}{trouble}"


def _doing(each: Position) -> str:
    return {
        facts.DEBUGGER: "in a debugger",
        facts.EVALUATION: f"in evaluation, {each.what}" if each.what[:7] != "forward" else f"in {each.what}",
        facts.CHECKPOINT: f"in a save, {each.what}",
        facts.DEVICE: f"in {each.what}" if each.may_compute() else f"in a wait for {facts.GPU}",
        facts.TRAINING: f"in training without a collective, {each.steps} steps long",
    }.get(each.phase, f"in {each.what}")


def _line(each: Position) -> str:
    return f"{each.where}: {each.source}" if each.source else each.where


def _since(each: Position) -> str:
    batch = f", batch {each.batch}" if each.batch else ""
    epoch = ""
    if each.epoch is not None:
        epoch = f" of epoch {each.epoch}" if batch else f", epoch {each.epoch}" if each.step else ""
    return f" since step {each.step}{batch}{epoch}" if each.step else f"{batch}{epoch}"


def _after(step: Optional[int]) -> str:
    return f" after step {step}" if step else ""


def _waiters(waiting: Sequence[Position]) -> str:
    """Return the ranks that wait, those in the same place together."""
    groups: Dict[Tuple[str, str, Optional[int]], List[Position]] = {}
    for each in waiting:
        groups.setdefault((each.what, each.where, each.step), []).append(each)
    told = []
    for those in list(groups.values())[:4]:
        verb = "waits" if len(those) == 1 else "wait"
        told.append(f"{several([each.rank for each in those])} {verb} {_wait(those[0])}")
    return ";\n".join(told)


def _wait(each: Position) -> str:
    step = f" of step {each.step}" if each.step else ""
    if each.phase == facts.BACKWARD:
        return f"in all-reduce{step} (backward, {each.where})"
    if each.phase == facts.COLLECTIVE:
        after = f", in step {each.step}" if each.step else ""
        return f"in {kind(each)} ({_line(each)}{after})"
    if each.phase == facts.DEVICE:
        place = f", or computes, in {each.what}" if each.may_compute() else ""
        return f"for the GPU{place}{step} ({_line(each)})"
    return f"in {each.what}{step} ({each.where})"


def _cause(each: Position, waiting: Sequence[Position]) -> Tuple[str, str]:
    """Return why a rank is late, and what to do."""
    if each.phase == facts.DEBUGGER:
        return DEBUGGER, "It is being debugged: ddpfix ends no process"
    if _is_past_its_data(each, waiting):
        return UNEVEN, _uneven(waiting)
    if each.phase == facts.ENDED:
        return ABSENT, "Its other threads may still run"
    pace = "It is not moving" if each.idle else "It is computing: late, perhaps not stuck"
    if each.moving:
        pace = "It is moving: late, not stuck"
    elif each.phase == facts.DEVICE:
        pace = "It is waiting for its GPU, or computing"
    if each.phase == facts.EVALUATION:
        return EVALUATION, (
            f"{pace}. Evaluation on some ranks only: the others wait in their next collective, and fail after the time"
            " limit (init_process_group(timeout=...))"
        )
    if each.phase == facts.CHECKPOINT:
        return SAVE, f"{pace}. A save on some ranks only, or a slow file system: the others wait until it is done"
    if each.phase == facts.LOADER:
        return LOADER, f"{pace}. {_reading(each)}"
    return SLOW, f"{pace}. Its stack shows what it is doing"


def _is_past_its_data(each: Position, waiting: Sequence[Position]) -> bool:
    """Return whether a rank is done with its loop while others have one more step."""
    if not _is_behind(each.step, waiting):
        return False
    if _past([each], waiting):
        return True
    is_out = any(other.loads for other in waiting) and not each.loads
    return each.phase == facts.ENDED or (is_out and each.phase in (facts.OTHER, facts.COLLECTIVE))


def _past(those: Sequence[Position], others: Sequence[Position]) -> str:
    """Return that ranks are past the loop that all of the others are in; "" where there is no such loop."""
    first = those[0]
    found = [left_loop(first.loops, other.loops) for other in others]
    for loop, other in zip(found, others):
        # In a loop around it, the others may be in a later turn, and what this rank does is asked of it alone.
        if loop is None or (loop[2] and (first.epoch is None or first.epoch != other.epoch)):
            return ""
    if not found or found[0] is None:
        return ""
    who, still = (several([each.rank for each in ranks]) for ranks in (those, others))
    are, are_still = ("is" if len(ranks) == 1 else "are" for ranks in (those, others))
    line = f"{os.path.basename(found[0][0])}:{found[0][1]}"
    return f"{who.capitalize()} {are} past the loop of {line}, which {still} {are_still} still in"


def _reading(each: Position) -> str:
    if each.moving:
        return "Its data is slow to read: a slow file system, or one long item"
    if "has ended" in each.trouble or "is stopped" in each.trouble:
        return "A loader worker is dead or stopped"
    if each.trouble.endswith("are alive"):
        return "A loader worker is stuck, or reads from a slow file system"
    return "Its data loading is stuck, or reads from a slow file system"


def describe_mismatch(kinds: Sequence[Sequence[Position]]) -> Finding:
    """Ranks in different collectives, the fewest ranks first."""
    odd = list(kinds[0])
    rest = [each for ranks in kinds[1:] for each in ranks]
    told = f"{_waiters(odd)} for {max(each.still for each in odd):.0f} s;\n{_waiters(rest)}"
    ranks = [each.rank for each in odd]
    if len({each.what for each in [*odd, *rest]}) == 1:
        return Finding(MISMATCH, ranks, told, advice="The calls differ in size or rank")
    behind, ahead = _in_order(odd, rest)
    first, past = [each.rank for each in behind], _past(behind, ahead) if behind else ""
    if past:
        return Finding(UNEVEN, first, f"{told}.\n{past}", advice=_uneven(ahead))
    if any(each.loads for each in ahead) and not any(each.loads for each in behind):
        out = f"{several(first).capitalize()} left the loop over the data first"
        return Finding(UNEVEN, first, f"{told}.\n{out}", advice=_UNEVEN)
    within = bool(behind) and all(shared_loop(behind[0].loops, each.loops) for each in ahead)
    is_early = bool(ahead) and not within and not any(each.loads for each in (*odd, *rest))
    early = f".\n{_EARLY}" if is_early else ""
    is_of_two = any(each.what in facts.POINT_TO_POINT for each in odd)
    if not is_of_two and all(each.call for each in odd) and not any(each.call for each in rest):
        return Finding(SOME_ONLY, ranks, told, advice=_SOME_ONLY + early)
    return Finding(MISMATCH, ranks, told, advice="The calls differ" + early)


def _in_order(some: Sequence[Position], others: Sequence[Position]) -> Tuple[Sequence[Position], Sequence[Position]]:
    """Return ranks that are done with what the others still do, and these; none where that is not known."""
    pairs = ((some, others), (others, some))
    for behind, rest in pairs:
        # In the same step, and those in the next one.
        steps = {each.step for each in behind}
        ahead = [each for each in rest if each.step is not None and steps == {each.step - 1}]
        if ahead:
            return behind, ahead
    for behind, rest in pairs:
        # Their loader has ended, and the others train with theirs: in no function that evaluates by its name.
        names = [name for each in rest for _, name, _, _ in each.loops]
        trains = all(each.loads for each in rest) and not any(map(facts.EVALUATES.search, names))
        if trains and not any(each.loads for each in behind):
            return behind, rest
    return (), ()


def describe_count_mismatch(those: Sequence[Position], rest: Sequence[Position], numbers: Tuple[int, int]) -> Finding:
    """Ranks for which torch counts more or fewer collectives than for the others, which wait all the same."""
    ranks = [each.rank for each in those]
    told = f"{_waiters([*those, *rest])}, for {max(each.still for each in those):.0f} s"
    count = f"torch counts {_more(*numbers)} on {several(ranks)} than on the others"
    is_same_step = {each.step for each in those} == {each.step for each in rest}
    kind, advice = (SOME_ONLY, _SOME_ONLY) if is_same_step else (MISMATCH, "")
    return Finding(kind, ranks, f"{told};\n{count}", advice=advice)


def _more(one: int, other: int) -> str:
    number = abs(one - other)
    return f"{number} {'call' if number == 1 else 'calls'} {'more' if one > other else 'fewer'}"


def describe_returned(those: Sequence[Position], waiting: Sequence[Position]) -> Finding:
    """Ranks that have come out of the collective in which the others are."""
    told = f"{_late(those)};\n{_waiters(waiting)}"
    words = f"{told}.\ntorch counts equally many calls on each of them"
    return Finding(MISMATCH, [each.rank for each in those], words, advice="Do sizes or kinds differ?")


def describe_shift(found: Finding, ranks: Sequence[int], place: str, number: int) -> Finding:
    """Ranks that have called a collective more often than the others, long ago perhaps."""
    verb, calls = "has" if len(ranks) == 1 else "have", "one collective" if number == 1 else f"{number} collectives"
    told = f"{found.where}.\n{several(ranks).capitalize()} {verb} begun {calls} more, at {place}"
    return Finding(SOME_ONLY, list(ranks), told, advice=ON_ALL_RANKS)


def describe_alone(each: Position, why: str) -> Finding:
    """Describe a rank that has waited for too long, where nobody can tell what the others do."""
    told = f"rank {each.rank} has waited in {each.what} ({each.where}) for {each.still:.0f} s; {why}"
    return Finding(ALONE, [each.rank], told, may_end=False)


def describe_all_waiting(waiting: Sequence[Position]) -> Finding:
    """Describe ranks that all wait in the same collective."""
    longest = max(each.still for each in waiting)
    told = f"{_waiters(waiting)} for {longest:.0f} s, and no rank is missing"
    return Finding(NETWORK, [], told, advice="The network between them, or tensor sizes that differ?")
