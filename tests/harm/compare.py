"""What differs between a program's two runs."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List

from tests.harm.launch import HANGS, Pair, Run, patience
from tests.harm.program import Program

# Seconds that a program may take longer than in plain torch, on an idle machine.
LONGER = 6.0
# The one line that every job has.
_SUMMARY = r"ddpfix [\w.]+: \d+ fix(es)? in use.*"
_OURS = re.compile(r"^ddpfix\b.*", re.MULTILINE)


def complaints(program: Program, pair: Pair) -> List[str]:
    """Say what differs, the weightiest first; nothing where the program was left as it is."""
    found = [text for rank, run in enumerate(pair.plain) for text in _declared(program, rank, run)]
    for rank, (plain, other) in enumerate(zip(pair.plain, pair.ddpfix)):
        found += [f"rank {rank}: {text}" for text in _differences(plain, other)]
    found += list(_lines(program, pair.ddpfix))
    for place, names in pair.ddpfix_left.items():
        names = [each for each in names if not any(re.match(pattern, each) for pattern in program.leaves)]
        if names != pair.plain_left[place]:
            found.append(f"files left in {place}: {names}, plain {pair.plain_left[place]}")
    return found


def _declared(program: Program, rank: int, run: Run) -> Iterator[str]:
    wanted = program.codes[rank] if program.codes else 0
    if run.code != wanted:
        last = run.err.strip().splitlines()[-1:] or [""]
        yield f"NOT RIGHT IN PLAIN TORCH: rank {rank}: exit code {run.code}, declared {wanted}: {last[0]}"


def _differences(plain: Run, other: Run) -> Iterator[str]:
    if other.code != plain.code:
        last = other.err.strip().splitlines()[-1:] or [""]
        yield f"exit code {other.code}, plain {plain.code}: {last[0][:300]}"
    # Ranks of torch elastic write to one file, in any order.
    if sorted(other.out.splitlines()) != sorted(plain.out.splitlines()):
        yield f"printed {_first(other.out, plain.out)}"
    for part in ("value", "streams"):
        yield from _parts(part, plain.record.get(part, {}), other.record.get(part, {}))
    if plain.record and other.record:
        yield from _left(plain.record, other.record)
    if HANGS not in (plain.code, other.code) and other.seconds > plain.seconds + LONGER * patience():
        yield f"took {other.seconds:.0f} s, plain {plain.seconds:.0f} s"


def _first(other: str, plain: str) -> str:
    for one, two in zip(other.splitlines(), plain.splitlines()):
        if one != two:
            return f"{one[:200]!r}, plain {two[:200]!r}"
    return f"{len(other.splitlines())} lines, plain {len(plain.splitlines())}"


def _parts(name: str, plain: Dict[str, str], other: Dict[str, str]) -> Iterator[str]:
    differing = [key for key in {**plain, **other} if plain.get(key) != other.get(key)]
    if differing and other:
        key = differing[0]
        yield f"{name}{key}: {other.get(key)}, plain {plain.get(key)} ({len(differing)} of {len(plain)} differ)"


def _left(plain: Dict[str, Any], other: Dict[str, Any]) -> Iterator[str]:
    if other["threads"] != plain["threads"]:
        yield f"threads left: {other['threads']}, plain {plain['threads']}"
    elif other["tasks"] > plain["tasks"]:
        yield f"{other['tasks']} threads of the system left, plain {plain['tasks']}"
    more = {kind: count for kind, count in other["files"].items() if count > plain["files"].get(kind, 0)}
    if more:
        yield f"descriptors left: {more}, plain {plain['files']}"


def _lines(program: Program, runs: List[Run]) -> Iterator[str]:
    """Lines that are printed and not declared, and those that are declared and not printed."""
    printed = [line for run in runs for line in _OURS.findall(run.err)]
    for line in dict.fromkeys(printed):
        if not any(re.search(pattern, line) for pattern in (_SUMMARY, *program.due, *program.may)):
            yield f"says: {line[:300]}"
    for pattern in program.due:
        if not any(re.search(pattern, line) for line in printed):
            yield f"does not say: {pattern}"
