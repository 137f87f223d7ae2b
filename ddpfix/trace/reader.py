"""Reads a trace, also one whose ranks were killed: what is incomplete at the end of a file is dropped.

What is read has the kinds of values that the format has: whoever uses it need not ask.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpfix.trace import schema

Row = Dict[str, Any]
# What is larger is no time and no size, and sums of it have no end.
_LARGEST = 1e30


class TraceError(ValueError):
    """A trace cannot be read; the message names the file and the line, and says what is wrong."""


@dataclass
class Run:
    """One process of one rank.

    Attributes:
        rank: from the name of the file.
        header: the ``run`` line.
        models: ``model`` lines, by the order in which the models were wrapped.
        begins: ``begin`` lines: steps under way, with the shape of their batch.
        end: the ``end`` line; None if the process was killed, or still runs.
        steps: the columns of :data:`~ddpfix.trace.schema.COLUMNS`, of equal length; None where a value is missing.
    """

    rank: int
    file: Path
    header: Row = field(default_factory=dict)
    models: List[Row] = field(default_factory=list)
    begins: List[Row] = field(default_factory=list)
    events: List[Row] = field(default_factory=list)
    settings: List[Row] = field(default_factory=list)
    end: Optional[Row] = None
    steps: Dict[str, List[Any]] = field(default_factory=lambda: {name: [] for name in schema.NAMES})


@dataclass
class Trace:
    """A folder.

    Attributes:
        runs: the last process of each rank.
        earlier: the files of processes before it (a job that was started again into the same folder), by rank;
            :func:`read_run` reads one.
    """

    folder: Path
    runs: Dict[int, Run] = field(default_factory=dict)
    earlier: Dict[int, List[Path]] = field(default_factory=dict)


def read(folder: Path) -> Trace:
    """Read the trace in a folder; TraceError: there is none, or a file is damaged elsewhere than at its end."""
    trace = Trace(folder)
    for rank, attempt, file in files(folder):
        if attempt is None:
            trace.runs[rank] = read_run(file)
        else:
            trace.earlier.setdefault(rank, []).append(file)
    return trace


def files(folder: Path) -> List[Tuple[int, Optional[int], Path]]:
    """Return the files with lines in a folder: rank, number of the earlier process or None, path; by rank."""
    try:
        found = [(schema.rank_of(file), file) for file in folder.iterdir()]
    except (OSError, ValueError) as error:
        # A name with a NUL byte is no error of the system's.
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{folder}: cannot read a trace: {reason}") from None
    named = [(*place, file) for place, file in found if place is not None]
    if not named:
        raise TraceError(f"{folder}: no trace here (expected rank-00000.jsonl); record one with DDPFIX_TRACE={folder}")
    # The last process of a rank has no number.
    return sorted(named, key=lambda each: (each[0], each[1] is None, each[1] or 0))


def read_run(file: Path) -> Run:
    """Read one process of a rank; TraceError as :func:`read`."""
    place = schema.rank_of(file)
    if place is None:
        raise TraceError(f"{file}: not a trace file (expected a name like rank-00000.jsonl)")
    run = Run(place[0], file)
    for number, line in enumerate(_whole_lines(file), 1):
        _add(run, _parse(file, number, line))
    if not run.steps["step"] and file.with_suffix(".arrow").exists():
        raise TraceError(
            f"{file.with_suffix('.arrow')}: Arrow traces are not supported since 1.1.0; record the run again"
        )
    return run


def _whole_lines(file: Path) -> List[bytes]:
    # A pipe would be waited for, and a device has no end.
    if file.exists() and not file.is_file():
        raise TraceError(f"{file}: not a regular file")
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    # What follows the last line break is incomplete, or nothing.
    return lines[:-1]


def _parse(file: Path, number: int, line: bytes) -> Row:
    """Return one whole line; raise :class:`TraceError` for one that is damaged."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file}, line {number}: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        raise TraceError(f'{file}, line {number}: expected an object with a "kind"')
    if row["kind"] == schema.RUN and row.get("version") != schema.VERSION:
        found = str(row.get("version"))[:40]
        raise TraceError(f"{file}, line {number}: trace format {found} is not supported (only {schema.VERSION})")
    for name, kind in schema.FIELDS.get(row["kind"], {}).items():
        value = row.get(name)
        if not (_IS[kind](value) if value is not None else name != "step" or row["kind"] != schema.STEP):
            raise TraceError(f"{file}, line {number}: {name} is {str(value)[:40]}, which is no {kind}")
    return row


def _add(run: Run, row: Row) -> None:
    """Put one line where it belongs; kinds that are not known are left out."""
    kind = row.pop("kind")
    lists = {schema.MODEL: run.models, schema.BEGIN: run.begins, schema.EVENT: run.events, schema.SETTING: run.settings}
    if kind == schema.STEP:
        for name in schema.NAMES:
            run.steps[name].append(row.get(name))
    elif kind == schema.RUN:
        run.header.update(row)
    elif kind == schema.END:
        run.end = row
    elif kind in lists:
        lists[kind].append(row)


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return type(value) is list and all(map(of, value))


def _is_int(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_IS: Dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": lambda value: type(value) in (int, float) and -_LARGEST < value < _LARGEST,
    "ints": lambda value: _is_list(value, _is_int),
    "text": lambda value: type(value) is str,
    "texts": lambda value: _is_list(value, _IS["text"]),
    "table": lambda value: type(value) is dict,
    "tables": lambda value: _is_list(value, _IS["table"]),
}
