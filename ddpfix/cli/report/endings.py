"""How the ranks of a run ended: which failed and why, which were killed, and which stood still, in sentences."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddpfix.cli.report import words
from ddpfix.cli.report.words import BAD, GOOD, PLAIN, Finding
from ddpfix.monitor.last_words import says_that_another_exited, without_explanation

Data = Dict[str, Any]
NO_END, ENDED, FAILED = "no exit record", "ended", "failed: "
# A line of ddpfix about ranks that stand still.
_HANG = "ranks wait: "
# The lines of ddpfix about a rank that failed, and about one that could not log anything itself.
_FAILURE = re.compile(r"rank (\d{1,9}) failed(?: in step (\d{1,9}))?: (.+)", re.DOTALL)
_DEATH = re.compile(r"rank (\d{1,9}) (?:ended without a word|is silent)")
_FOLLOWS = "this rank ends because "
_PEERS = "PeerFailedError: "
# The page lists so many failures, and so many other errors.
_MOST = 5
_KILLED = (
    "advice: dmesg, the scheduler or the container shows whether the host ran out of memory; smaller batches and fewer"
    " loader workers need less"
)


class Failure(NamedTuple):
    """Ranks that failed with the same error."""

    words: str
    ranks: Set[int]
    steps: Set[int]


def make(data: Data) -> List[Finding]:
    """Return the findings, causes before consequences."""
    hang = _hang(data)
    # Whoever ends a job that hangs ends ranks that did nothing wrong.
    dead = {rank: event for rank, event in _deaths(data).items() if hang is None or (event["time"] or 0.0) < hang}
    failures = _failures(data)
    causes = [each for each in failures if not (each.words.startswith(_PEERS) or says_that_another_exited(each.words))]
    known = causes if causes or dead else failures
    found = [_death(event, data) for event in dead.values()]
    found += [_failure(each, data) for each in known[:_MOST]]
    if len(known) > _MOST:
        found.append(Finding("ranks", BAD, f"{words.count(len(known) - _MOST, 'further error')} not shown."))
    followers = sorted({rank for each in failures if each not in known for rank in each.ranks} - _ranks(known))
    if followers:
        found.append(Finding("ranks", PLAIN, f"{_capital(words.ranks(followers))} failed as a consequence."))
    found += [*_unexplained(data, known), *_others(data)]
    if hang is None:
        found += _without_end(data, set(dead), bool(dead or known))
    found += _missing(data)
    return found or [_in_order(data)]


def _ranks(failures: Sequence[Failure]) -> Set[int]:
    return {rank for each in failures for rank in each.ranks}


def _events(data: Data, level: str) -> List[Data]:
    """Return the lines of a level, the earliest first."""
    found = [each for each in data["events"] if each["level"] == level]
    return sorted(found, key=lambda each: each["time"] or 0.0)


def _failures(data: Data) -> List[Failure]:
    """Return the errors by which ranks ended, the first one first."""
    found: Dict[str, Failure] = {}
    for event in _events(data, "error"):
        match = _FAILURE.match(event["text"])
        if match:
            text = without_explanation(match[3])
            each = found.setdefault(text, Failure(text, set(), set()))
            each.ranks.add(int(match[1]))
            each.steps.update([int(match[2])] if match[2] else [])
    for end in data["ends"]:
        if end["how"] not in (NO_END, ENDED):
            text = end["how"][len(FAILED) :] if end["how"].startswith(FAILED) else end["how"]
            text = without_explanation(text)
            found.setdefault(text, Failure(text, set(), set())).ranks.update(end["ranks"])
    return list(found.values())


def _failure(failure: Failure, data: Data) -> Finding:
    where = f" in step {min(failure.steps):,}" if failure.steps else ""
    who = _capital(words.ranks(sorted(failure.ranks)))
    explained = _explanation(data, failure.ranks)
    if explained is None:
        return Finding("ranks", BAD, f"{who} failed{where}: {failure.words}")
    head, lines = explained
    return Finding("ranks", BAD, f"{who} failed{where}: {head}", [*lines, f"the error: {failure.words}"])


def _explanation(data: Data, ranks: Set[int]) -> Optional[Tuple[str, List[str]]]:
    """Return names, causes and fixes that ddpfix has added to the error of one of these ranks."""
    for event in _events(data, "diagnosis"):
        if set(event["ranks"]) & ranks:
            return _read(event["text"])
    return None


def _read(text: str) -> Tuple[str, List[str]]:
    """Return the first sentence of a diagnosis with its names, and the other lines, each with the code below it."""
    head, *parts = text.split("\nddpfix: ")
    first, *names = [line.strip() for line in head.splitlines() if line.strip()] or [""]
    lines = ["\n".join(line.strip() for line in part.splitlines() if line.strip()) for part in parts]
    return f"{first} {', '.join(names)}".strip(), [re.sub("^cure: ", "fix: ", line) for line in lines]


def _unexplained(data: Data, known: Sequence[Failure]) -> Iterator[Finding]:
    """Yield diagnoses of errors that ended no rank, as where the program catches them."""
    for event in _events(data, "diagnosis")[:1]:
        if not known:
            head, lines = _read(event["text"])
            yield Finding("ranks", BAD, f"Error on {words.ranks(event['ranks'], event['of_ranks'])}: {head}", lines)


def _deaths(data: Data) -> Dict[int, Data]:
    """Return the first line about each rank that could not log its end itself."""
    silent = {rank for end in data["ends"] if end["how"] == NO_END for rank in end["ranks"]}
    silent.update(data["ranks_missing"])
    found: Dict[int, Data] = {}
    for event in _events(data, "error"):
        match = _DEATH.match(event["text"])
        if match and int(match[1]) in silent:
            found.setdefault(int(match[1]), event)
    return found


def _death(event: Data, data: Data) -> Finding:
    who = words.ranks(event["ranks"], event["of_ranks"])
    text = event["text"].rstrip(".")
    lines = [_KILLED] if "SIGKILL" in text else []
    match = _DEATH.match(text)
    where = _where([each for each in data["unended"] if match and each["rank"] == int(match[1]) and each["shape"]])
    if where:
        lines.insert(0, f"killed:{where}")
    return Finding("ranks", BAD, f"{_capital(text)} (reported by {who}).", lines)


def _others(data: Data) -> Iterator[Finding]:
    """Yield the other errors that ddpfix logged, such as ranks that wait for each other."""
    found = [each for each in _events(data, "error") if not _is_of_an_end(each["text"])]
    for event in found[:_MOST]:
        yield Finding("ranks", BAD, _capital(event["text"]))


def _is_of_an_end(text: str) -> bool:
    return bool(_FAILURE.match(text) or _DEATH.match(text) or text.startswith(_FOLLOWS))


def _hang(data: Data) -> Optional[float]:
    """Return when ranks were found to stand still for good; None if they were not, or ended a step afterwards."""
    found = [event["time"] or 0.0 for event in _events(data, "error") if event["text"].startswith(_HANG)]
    return next((moment for moment in found if moment >= data["last_row"]), None)


def _without_end(data: Data, dead: Set[int], is_explained: bool) -> Iterator[Finding]:
    mine = [each for each in data["unended"] if each["rank"] not in dead]
    ranks = [each["rank"] for each in mine]
    if not ranks:
        return
    who, has, was = _capital(words.ranks(ranks)), *(("has", "was") if len(ranks) == 1 else ("have", "were"))
    if is_explained:
        yield Finding("ranks", PLAIN, f"{who} {has} no exit record: a launcher ends the other ranks.")
    elif set(ranks) <= set(data["ranks_exited"]):
        yield Finding("ranks", BAD, f"{who} {was} killed{_where(mine)} (no exit record).", [_KILLED])
    else:
        text = f"{who} {has} no exit record: killed or still running{_where(mine)} when this page was made."
        yield Finding("ranks", BAD, text)


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
        who = words.ranks(data["ranks_missing"], data["ranks_missing_count"])
        yield Finding("ranks", BAD, f"No trace from {who} ({data['world_size']:,} ranks in all).")
    if data["one_row_stands_for"] > 1:
        text = f"The trace reached its size limit: up to {data['one_row_stands_for']} steps share a row."
        yield Finding("ranks", PLAIN, text)


def _in_order(data: Data) -> Finding:
    ranks = {1: "The only rank", 2: "Both ranks"}.get(data["ranks"], f"All {data['ranks']:,} ranks")
    return Finding("ranks", GOOD, f"{ranks} finished after {words.count(data['steps'], 'step')}.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
