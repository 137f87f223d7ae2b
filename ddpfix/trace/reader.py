"""Reads a trace, also one whose ranks were killed: what is incomplete at the end of a file is dropped."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type

from ddpfix.trace import schema

Row = Dict[str, Any]
# Rows in one batch of a file, at most: the writer puts some thousands into one.
MOST_ROWS = 2**20


class TraceError(ValueError):
    """A trace cannot be read; the message names the file and the line, and says what is wrong."""


def _no_columns() -> Dict[str, List[Any]]:
    return {name: [] for name in schema.NAMES}


@dataclass
class Run:
    """One process of one rank.

    Attributes:
        rank: from the name of the file.
        file: the file with the lines.
        header: the ``run`` line, with ``patches`` from a later line if there is one.
        models: ``model`` lines, by the order in which the models were wrapped.
        events: ``event`` lines.
        settings: ``setting`` lines.
        stalls: ``at`` lines: where the rank was when it had been at one place for some seconds.
        end: the ``end`` line; None if the process was killed, or still runs.
        steps: the columns of :data:`~ddpfix.trace.schema.COLUMNS`, of equal length; None where a value is missing.
    """

    rank: int
    file: Path
    header: Row = field(default_factory=dict)
    models: List[Row] = field(default_factory=list)
    events: List[Row] = field(default_factory=list)
    settings: List[Row] = field(default_factory=list)
    stalls: List[Row] = field(default_factory=list)
    end: Optional[Row] = None
    steps: Dict[str, List[Any]] = field(default_factory=_no_columns)


@dataclass
class Trace:
    """A folder.

    Attributes:
        folder: where it is.
        runs: the last process of each rank.
        earlier: the files of processes before it (a job that was started again into the same folder), by rank;
            :func:`read_run` reads one.
    """

    folder: Path
    runs: Dict[int, Run] = field(default_factory=dict)
    earlier: Dict[int, List[Path]] = field(default_factory=dict)


def read(folder: Path) -> Trace:
    """Read the trace in a folder.

    Args:
        folder: the value of ``DDPFIX_TRACE``.

    Raises:
        TraceError: it is no folder, has no trace, or a file is damaged elsewhere than at its end.
    """
    trace = Trace(folder)
    for rank, attempt, file in files(folder):
        if attempt is None:
            trace.runs[rank] = read_run(file)
        else:
            trace.earlier.setdefault(rank, []).append(file)
    return trace


def files(folder: Path) -> List[Tuple[int, Optional[int], Path]]:
    """Return the files with lines in a folder: rank, number of the earlier process or None, path; by rank.

    Raises:
        TraceError: it is no folder, cannot be read, or has no trace.
    """
    try:
        found = [(schema.rank_of(file), file) for file in folder.iterdir()]
    except (OSError, ValueError) as error:
        # A name with a NUL byte is no error of the system's.
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{folder}: no trace can be read there: {reason}") from None
    named = [(*place, file) for place, file in found if place is not None]
    if not named:
        raise TraceError(f"{folder}: there is no trace (no file rank-00000.jsonl, as DDPFIX_TRACE={folder} leaves it)")
    # The last process of a rank has no number.
    return sorted(named, key=lambda each: (each[0], each[1] is None, each[1] or 0))


def read_run(file: Path) -> Run:
    """Read one process of a rank: the lines, and the step rows that lie beside them.

    Args:
        file: a ``rank-00000.jsonl``.

    Raises:
        TraceError: see :func:`read`.
    """
    place = schema.rank_of(file)
    if place is None:
        raise TraceError(f"{file}: is no file of a trace (rank-00000.jsonl)")
    run = Run(place[0], file)
    for number, line in enumerate(_whole_lines(file), 1):
        add(run, parse(file, number, line))
    arrow = schema.arrow_file(file)
    if arrow.exists():
        for columns in _batches(arrow):
            for name in schema.NAMES:
                run.steps[name].extend(columns[name])
    return run


def _whole_lines(file: Path) -> List[bytes]:
    refuse_other_than_files(file)
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    # What follows the last line break is incomplete, or nothing.
    return lines[:-1]


def refuse_other_than_files(file: Path) -> None:
    """Raise :class:`TraceError` for what is no file: a pipe would be waited for, and a device has no end."""
    if file.exists() and not file.is_file():
        raise TraceError(f"{file}: is no file")


def parse(file: Path, number: int, line: bytes) -> Row:
    """Return one whole line; raise :class:`TraceError` for one that is damaged."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file}, line {number}: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        raise TraceError(f'{file}, line {number}: expected an object with a "kind"')
    if row["kind"] == schema.RUN and row.get("version") != schema.VERSION:
        raise TraceError(
            f"{file}, line {number}: format {str(row.get('version'))[:40]};"
            f" this release of ddpfix reads {schema.VERSION}"
        )
    return row


def add(run: Run, row: Row) -> None:
    """Put one line where it belongs; kinds that are not known are left out."""
    kind = row.pop("kind")
    lists = {
        schema.MODEL: run.models,
        schema.EVENT: run.events,
        schema.SETTING: run.settings,
        schema.AT: run.stalls,
    }
    if kind == schema.STEP:
        for name in schema.NAMES:
            run.steps[name].append(row.get(name))
    elif kind in (schema.RUN, schema.PATCHES):
        run.header.update(row)
    elif kind == schema.END:
        run.end = row
    elif kind in lists:
        lists[kind].append(row)


def import_pyarrow(file: Path) -> Any:
    """Return the module; raise :class:`TraceError` where it is missing."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise TraceError(f"{file}: pyarrow is needed to read it (pip install 'ddpfix[trace]')") from None
    return pyarrow


def damaged(pyarrow: Any) -> Tuple[Type[BaseException], ...]:
    """Return the errors that pyarrow may raise for a damaged stream."""
    return (pyarrow.ArrowException, OSError, ValueError, EOFError, OverflowError, MemoryError, struct.error)


def _batches(file: Path) -> Iterator[Dict[str, Sequence[Any]]]:
    """Yield the step rows, one batch after the other; the last one is dropped if it is incomplete."""
    refuse_other_than_files(file)
    try:
        size = file.stat().st_size
        if size == 0:
            return
        pyarrow = import_pyarrow(file)
        source = pyarrow.OSFile(str(file))
    except FileNotFoundError:
        # A new process of this rank has put it aside just now.
        return
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    with source:
        messages = pyarrow.ipc.MessageReader.open_stream(source)
        found, number = None, 0
        while True:
            try:
                message = messages.read_next_message()
            except StopIteration:
                return
            except damaged(pyarrow) as error:
                if source.tell() >= size:
                    return
                raise TraceError(f"{file}, batch {number}: {error}") from None
            try:
                if found is None:
                    found = read_schema(pyarrow, message)
                    continue
                rows = columns(pyarrow, read_batch(pyarrow, message, found))
            except damaged(pyarrow) as error:
                raise TraceError(f"{file}, batch {number}: {error}") from None
            number += 1
            yield rows


def read_schema(pyarrow: Any, message: Any) -> Any:
    """Return the schema in a message; raise ValueError for one of another kind, which would crash pyarrow."""
    if message.type != "schema":
        raise ValueError(f"a schema is expected, not a message of the kind {message.type}")
    return pyarrow.ipc.read_schema(message)


def read_batch(pyarrow: Any, message: Any, found: Any) -> Any:
    """Return the record batch in a message, with the schema that was found.

    Raises:
        ValueError: its buffers are compressed, which no writer of ours does: some bytes may stand for any number.
    """
    if message.type == "record batch" and _is_compressed(bytes(message.metadata)):
        raise ValueError("its buffers are compressed")
    batch = pyarrow.ipc.read_record_batch(message, found)
    batch.validate(full=True)
    return batch


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch's metadata (a flatbuffer, Message of Arrow's format) names a compression."""
    (root,) = struct.unpack_from("<I", metadata)
    # In Message, the header is the third field; in RecordBatch, the compression is the fourth.
    header = _field(metadata, root, 2)
    return header is not None and _field(metadata, header + _offset(metadata, header), 3) is not None


def _field(buffer: bytes, table: int, number: int) -> Optional[int]:
    """Return the place of a field of a flatbuffer's table; None if the table lacks it."""
    fields = table - struct.unpack_from("<i", buffer, table)[0]
    (length,) = struct.unpack_from("<H", buffer, fields)
    entry = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", buffer, fields + entry) if entry < length else (0,)
    return table + offset if offset else None


def _offset(buffer: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", buffer, place)[0])


def columns(pyarrow: Any, batch: Any) -> Dict[str, Sequence[Any]]:
    """Return the columns of a record batch as lists; None for a column that it lacks, or that is of another kind.

    Raises:
        ValueError: it has more rows than any that is written. Columns without values have as many as one likes.
    """
    if batch.num_rows > MOST_ROWS:
        raise ValueError(f"{batch.num_rows} rows")
    known = {field.name: place for place, field in enumerate(batch.schema) if _fits(pyarrow, field)}
    return {
        each.name: batch.column(known[each.name]).to_pylist() if each.name in known else [None] * batch.num_rows
        for each in schema.COLUMNS
    }


def _fits(pyarrow: Any, field: Any) -> bool:
    """Return whether a column is one of numbers or lists of integers; others may take any amount of memory."""
    kinds = {column.name: column.kind for column in schema.COLUMNS}
    types = pyarrow.types
    if kinds.get(field.name) == "ints":
        return bool(types.is_list(field.type) and types.is_integer(field.type.value_type))
    return field.name in kinds and bool(types.is_integer(field.type) or types.is_floating(field.type))
