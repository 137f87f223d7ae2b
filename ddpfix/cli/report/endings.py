"""How the ranks of a run ended: which failed and why, which were killed, and which stood still, by what they logged."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.logged import NO_END
from ddpfix.rules import endings
from ddpfix.rules.endings import ABOVE, FAILED, FOLLOWED, KILLED, SILENT
from ddpfix.rules.finding import GOOD, PLAIN, Finding, several
from ddpfix.rules.hang import sentences

Data = Dict[str, Any]
ENDED = "ended"
RANKS = "ranks"
# The page lists so many failures, and so many other errors.
_MOST = 5


def make(data: Data) -> List[Finding]:
    """Return the findings, causes before consequences."""
    told = list(_told(data, "error"))
    hangs = [event["time"] or 0.0 for event, found in told if found.kind in sentences.KINDS]
    # For good, unless a step has ended afterwards. Whoever ends a job that hangs ends ranks that did nothing wrong.
    hang = next((moment for moment in hangs if moment >= data["last_row"]), math.inf)
    # They could not log their end themselves.
    unended = {each["rank"] for each in data["unended"]}
    dead = {
        rank: found
        for event, found in reversed(told)
        for rank in found.ranks
        if found.kind in (KILLED, SILENT)
        and rank in unended.union(data["ranks_missing"])
        and (event["time"] or 0.0) < hang
    }
    explained = [found for _, found in _told(data, "diagnosis")]
    failures = _failures(data, [found for _, found in told])
    known = [each for each in failures if each.kind == FAILED] or ([] if dead else failures)
    # The explanation stands below it, with code to paste.
    found = [*dead.values(), *(each._replace(cause="") if explained else each for each in known[:_MOST])]
    if len(known) > _MOST:
        found.append(Finding(RANKS, (), f"{words.count(len(known) - _MOST, 'further error')} not shown"))
    found += explained[:1]
    followers = _ranks(failures) - _ranks(known)
    found += [endings.consequence(sorted(followers))] if followers else []
    ends = (FAILED, FOLLOWED, ABOVE, KILLED, SILENT)
    found += [each for _, each in told if each.kind not in ends][:_MOST]
    if hang == math.inf:
        found += _without_end(data, set(dead), bool(dead or known))
    found += _missing(data)
    if found:
        return found
    ranks = {1: "The only rank", 2: "Both ranks"}.get(data["ranks"], f"All {data['ranks']:,} ranks")
    return [Finding(RANKS, (), f"{ranks} finished after {words.count(data['steps'], 'step')}.", level=GOOD)]


def _ranks(found: Sequence[Finding]) -> Set[int]:
    return {rank for each in found for rank in each.ranks}


def _told(data: Data, level: str) -> Iterator[Tuple[Data, Finding]]:
    """Yield the lines of a level, the earliest first, and what each tells."""
    events = [each for each in data["events"] if each["level"] == level]
    for event in sorted(events, key=lambda each: each["time"] or 0.0):
        known = event["finding"] or {"kind": "", "ranks": event["ranks"], "where": event["text"]}
        yield event, Finding(**known)


def _failures(data: Data, told: Sequence[Finding]) -> List[Finding]:
    """Return the errors by which ranks ended: those that were logged, and those of ranks that could log none."""
    found = list({each.where: each for each in told if each.kind in (FAILED, FOLLOWED)}.values())
    logged, errors = _ranks(found), {_error(each.where) for each in found}
    alike: List[int] = []
    for end in data["ends"]:
        ranks = [rank for rank in end["ranks"] if rank not in logged]
        if end["how"] in (NO_END, ENDED) or not ranks:
            continue
        own = end["finding"] or {"kind": FAILED, "where": end["how"], "cause": ""}
        if _error(own["where"]) in errors:
            alike += ranks
        else:
            found.append(endings.failed(ranks, None, _error(own["where"]), own["cause"], own["kind"] == FOLLOWED))
    return [*found, endings.likewise(alike)] if alike else found


def _error(where: str) -> str:
    return where.partition("failed")[2].partition(": ")[2] or where


def _without_end(data: Data, dead: Set[int], is_explained: bool) -> Iterator[Finding]:
    for those in (dead, {each["rank"] for each in data["unended"]} - dead):
        mine = [each for each in data["unended"] if each["rank"] in those]
        ranks, where = [each["rank"] for each in mine], _where(mine)
        # Of a rank whose death was reported only its batch is news.
        if ranks and (those is not dead or " with a batch of " in where):
            have_exited = those is dead or set(ranks) <= set(data["ranks_exited"])
            yield endings.unrecorded(ranks, where, have_exited, is_explained and those is not dead)


def _where(unended: Sequence[Data]) -> str:
    """Return the step in which ranks were killed, with the largest batch in it, as far as the trace has it."""
    begun = [each for each in unended if each["shape"]]
    if begun:
        last = max(begun, key=lambda each: (each["step"], math.prod(each["shape"])))
        return f" in step {last['step']:,} with a batch of {words.shape(last['shape'])}"
    done = min((each["done"] for each in unended), default=0)
    return f" after step {done:,}, the last in the trace" if done else ""


def _missing(data: Data) -> Iterator[Finding]:
    if data["ranks_missing_count"]:
        who = several(data["ranks_missing"], data["ranks_missing_count"])
        yield Finding(RANKS, data["ranks_missing"], f"No trace from {who} ({data['world_size']:,} ranks in all).")
    if data["one_row_stands_for"] > 1:
        text = f"The trace reached its size limit: up to {data['one_row_stands_for']} steps share a row."
        yield Finding(RANKS, (), text, level=PLAIN)
