"""Follows the trace of a rank while it is written: only what is new is read, and of a long file only its end."""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Tuple

from ddpfix.trace import clean, reader, schema
from ddpfix.trace.reader import Row

# Bytes at the end of a file that are read at first, and rows that are kept.
_END, _ROWS = 2**18, 64
# The columns that are used here.
_NUMBERS = tuple(column.name for column in schema.COLUMNS if column.kind != "ints")
# A message of an Arrow stream begins with this, and the length of its head.
_MARK = b"\xff\xff\xff\xff"
_LONGEST_HEAD = 2**16


class Tail:
    """The last rows of one rank.

    Args:
        rank: this rank.
        file: its file with lines.

    Attributes:
        header: the ``run`` line; empty as long as there is none.
        rows: the last step rows.
        stall: where the rank was when it had been at one place for some seconds; None since it has gone on.
        end: the ``end`` line.
        event: the last warning or error.
    """

    def __init__(self, rank: int, file: Path) -> None:
        self.rank, self.file = rank, file
        self._lines, self._arrow = _Lines(file), _Batches(schema.arrow_file(file))
        self._identity: Optional[int] = None
        self._forget()

    def _forget(self) -> None:
        self.header: Row = {}
        self.rows: Deque[Row] = deque(maxlen=_ROWS)
        self.stall: Optional[Row] = None
        self.end: Optional[Row] = None
        self.event: Optional[Row] = None

    @property
    def last(self) -> Optional[Row]:
        """The last row."""
        return self.rows[-1] if self.rows else None

    def read(self) -> None:
        """Take what is new.

        Raises:
            TraceError: a file is damaged.
        """
        try:
            identity = self.file.stat().st_ino
        except OSError:
            return
        reader.refuse_other_than_files(self.file)
        reader.refuse_other_than_files(schema.arrow_file(self.file))
        if identity != self._identity:
            # Another process of this rank has begun, and put the file of the last one aside.
            self._identity = identity
            self._lines, self._arrow = _Lines(self.file), _Batches(schema.arrow_file(self.file))
            self._forget()
        for row in self._lines.new():
            self._take(row)
        for row in self._arrow.new():
            self._add(row)

    def _take(self, row: Row) -> None:
        kind = row["kind"]
        if kind == schema.RUN:
            self.header = _header(row)
        elif kind == schema.STEP:
            self._add(row)
        elif kind == schema.AT:
            self.stall = _stall(row)
        elif kind == schema.END:
            self.end = {"how": clean.text(row.get("how"))}
        elif kind == schema.EVENT and row.get("level") in ("warning", "error"):
            self.event = {"time": clean.number(row.get("time")) or 0.0, "text": clean.text(row.get("text"))}

    def _add(self, row: Row) -> None:
        row = {name: clean.number(row.get(name)) for name in _NUMBERS}
        row["step"] = clean.whole(row["step"])
        if row["step"] is None or row["time"] is None:
            # It was written by something else.
            return
        self.rows.append(row)
        if self.stall is not None and self.stall["time"] <= row["time"]:
            self.stall = None


def _header(row: Row) -> Row:
    """Return the used part of a ``run`` line, as far as its values are valid."""
    numbers = {name: clean.whole(row.get(name)) for name in ("world_size", "pid")}
    found: Row = {name: value for name, value in numbers.items() if value is not None}
    found["host"], found["command"] = clean.text(row.get("host")), clean.text(row.get("command"))
    started = clean.number(row.get("started"))
    return found if started is None else {**found, "started": started}


def _stall(row: Row) -> Optional[Row]:
    step, when = clean.whole(row.get("step")), clean.number(row.get("time"))
    if step is None or when is None:
        return None
    return {"step": step, "time": when, "phase": clean.text(row.get("phase"))}


class _Lines:
    def __init__(self, file: Path) -> None:
        self._file, self._place, self._number = file, 0, 0
        self._rest = b""

    def new(self) -> List[Row]:
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            first = self._place == 0
            if first:
                self._first(file)
            file.seek(self._place)
            content = file.read()
            self._place += len(content)
            lines = (self._rest + content).split(b"\n")
            self._rest = lines.pop()
            found = [self._parsed(line) for line in lines]
            return [*self._head, *found] if first else found
        return []

    def _first(self, file: Any) -> None:
        """Read the first line, and of a long file go on where its end begins."""
        self._head: List[Row] = []
        line = file.readline()
        if not line.endswith(b"\n"):
            return
        self._head = [self._parsed(line)]
        self._place = file.tell()
        size = self._file.stat().st_size
        if size - self._place > _END:
            file.seek(size - _END)
            # The line in whose middle this is.
            file.readline()
            self._place = file.tell()

    def _parsed(self, line: bytes) -> Row:
        self._number += 1
        return reader.parse(self._file, self._number, line)


class _Batches:
    """The step rows of an Arrow stream: its messages are found by their marks, so that the end can be read alone."""

    def __init__(self, file: Path) -> None:
        self._file, self._place = file, 0
        self._schema: Any = None

    def new(self) -> List[Row]:
        try:
            size = self._file.stat().st_size
        except OSError:
            return []
        if size <= self._place:
            return []
        pyarrow = reader.import_pyarrow(self._file)
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            if self._schema is None and not self._first(pyarrow, file, size):
                return []
            file.seek(self._place)
            found, whole = _rows(pyarrow, self._schema, file.read())
            self._place += whole
            return found
        return []

    def _first(self, pyarrow: Any, file: Any, size: int) -> bool:
        """Read the schema, and of a long file go on with a message in its last part."""
        content = file.read(_LONGEST_HEAD)
        length = _length(content, 0)
        if length is None or length > len(content):
            return False
        try:
            message = pyarrow.ipc.read_message(pyarrow.py_buffer(content[:length]))
            self._schema = reader.read_schema(pyarrow, message)
        except reader.damaged(pyarrow) as error:
            raise reader.TraceError(f"{self._file}: {error}") from None
        self._place = length
        if size - length > _END:
            file.seek(size - _END)
            self._place = size - _END + _first_batch(pyarrow, self._schema, file.read())
        return True


def _length(content: bytes, place: int) -> Optional[int]:
    """Return the bytes of the head of a message that begins here; None where none does, or it is incomplete."""
    if content[place : place + 4] != _MARK or len(content) < place + 8:
        return None
    (length,) = struct.unpack_from("<i", content, place + 4)
    return length + 8 if 0 < length <= _LONGEST_HEAD else None


def _batch(pyarrow: Any, schema_: Any, content: bytes, place: int) -> Optional[Tuple[Dict[str, Any], int]]:
    """Return the columns of the record batch that begins at a place, and the next message's place; None without one."""
    length = _length(content, place)
    if length is None:
        return None
    source = pyarrow.BufferReader(pyarrow.py_buffer(content)[place:])
    try:
        message = pyarrow.ipc.read_message(source)
        columns = dict(reader.columns(pyarrow, reader.read_batch(pyarrow, message, schema_)))
    except reader.damaged(pyarrow):
        return None
    return columns, place + int(source.tell())


def _first_batch(pyarrow: Any, schema_: Any, content: bytes) -> int:
    """Return the place of the first record batch in the last part of a stream; its length if there is none."""
    place = content.find(_MARK)
    while place >= 0:
        if _length(content, place) is not None and _batch(pyarrow, schema_, content, place) is not None:
            return place
        place = content.find(_MARK, place + 1)
    return len(content)


def _rows(pyarrow: Any, schema_: Any, content: bytes) -> Tuple[List[Row], int]:
    """Return the rows in whole batches, and how many bytes these are."""
    rows: List[Row] = []
    place = 0
    found = _batch(pyarrow, schema_, content, place)
    while found is not None:
        rows += [dict(zip(found[0], values)) for values in zip(*found[0].values())]
        place = found[1]
        found = _batch(pyarrow, schema_, content, place)
    return rows, place
