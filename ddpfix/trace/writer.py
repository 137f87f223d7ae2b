"""Writes the trace of one rank: rows are collected in memory, and a thread appends them to a file each second.

The program waits for a disk in a few steps only, and at most a moment (:meth:`Writer.begins`). Nothing is synchronised
to it: a process that is killed loses the rows of the last two seconds. An error of the file ends the trace with one
warning, and the training goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Sequence

from ddpfix import log
from ddpfix.trace import schema
from ddpfix.unlisted_thread import Background

Row = Dict[str, Any]
# Seconds between two writes of the thread.
TICK = 1.0
# A value that has not come from the GPU yet; rows with one wait for so many seconds.
PENDING, PATIENCE = object(), 10.0
# Longer texts of events are cut short.
_LONGEST_TEXT = 4000
# Rows and lines that wait to be written.
_MOST = 50000
# Bytes that step rows leave for other lines.
_RESERVE = 2**16
# Lines that may come again and again; together they get an eighth of the bound.
_MANY = (schema.BEGIN, schema.EVENT, schema.SETTING)
# The step of a batch that is so many times larger than all before has a line at once: at most some hundred in a run.
_LARGER = 1.1
# Seconds that the program waits for such a line, at most; and for one after which it may end without a word.
_MOMENT, _URGENT = 0.05, 0.5
VARIABLE = "DDPFIX_TRACE"


class Writer:
    """The file of one rank.

    Args:
        folder: where it is to be; it is made if it is not there.
        limit: bytes of the file.
    """

    def __init__(self, folder: Path, rank: int, limit: int = schema.LIMIT) -> None:
        self.folder, self.rank = folder, rank
        self.file = schema.lines_file(folder, rank)
        self._limit = limit
        # The end of the run has to find room.
        self._room = limit - min(_RESERVE, limit // 16)
        # A disk that does not answer for hours must not fill the memory.
        self._rows: Deque[Row] = deque(maxlen=_MOST)
        self._lines: Deque[Row] = deque(maxlen=_MOST)
        self._number: Optional[int] = None
        self._written = self._many = 0
        self._every = 1
        # The largest batch so far, and the last step that has a line because of its batch.
        self._largest = self._told = 0
        # Locks that the thread releases when it has written: a queue can be given them in a signal's handler, too.
        self._asks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_closing = False
        self._thread: Optional[Background] = None
        self.on = False

    def open(self) -> bool:
        """Make the file and start the thread; False, after one warning, where that is not possible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _put_aside(self.file)
            self._number = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            # A process that ends at once has left what it is, at least.
            self._write_lines()
        except OSError as error:
            self._give_up(error)
            return False
        self.on = True
        self._thread = Background(self._run)
        return True

    def line(self, kind: str, **values: Any) -> None:
        """Add a line of any kind but ``step``."""
        self._lines.append({"kind": kind, **values})

    def row(self, row: Row) -> None:
        """Add a step row, whose wait may be PENDING until the thread that trains replaces it."""
        if self._told == row["step"] and self.on:
            # The row may come later: without this line, a kill in a later step would look like one in this step.
            self.line(schema.BEGIN, time=row["time"], step=row["step"] + 1)
            self._ask(_MOMENT)
        if row["step"] % self._every == 0:
            self._rows.append(row)

    def begins(self, step: int, shape: Sequence[int]) -> None:
        """Have a line of a step whose batch is larger than all before: memory runs out in such a step."""
        size = math.prod(shape)
        if size > self._largest * _LARGER and self.on:
            self._largest, self._told = size, step
            self.line(schema.BEGIN, time=time.time(), step=step, shape=shape)
            self._ask(_MOMENT)

    def urgent(self) -> None:
        """Write the lines now: the process may end without a word."""
        if self.on:
            self._ask(_URGENT)

    def _ask(self, seconds: float) -> None:
        """Have the thread write the lines, so that a disk that does not answer holds up nothing."""
        answered = threading.Lock()
        answered.acquire()
        self._asks.put(answered)
        answered.acquire(timeout=seconds)

    def flush(self, patient: bool = False) -> None:
        """Write everything now, without the values that have not come; if ``patient``, only what is complete."""
        if self.on:
            try:
                self._write_lines()
                self._write_rows(patient)
            except Exception as error:
                self._give_up(error)

    def close(self, how: Optional[str], finding: Optional[Row] = None) -> None:
        """Write the rest and the end, and close the file; nothing in a forked child, where no thread writes."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._is_closing = True
        self._asks.put(None)
        self._thread.join(5.0)
        # A disk that has not answered will not answer now.
        if not self._thread.is_alive():
            if how is not None:
                self.line(schema.END, time=time.time(), how=how, **({} if finding is None else {"finding": finding}))
            self.flush()
            self._close_file()
        self.on = False

    def _run(self) -> None:
        while self.on:
            answered = None
            with contextlib.suppress(queue.Empty):
                answered = self._asks.get(timeout=TICK)
            if self._is_closing:
                return
            self.flush(patient=True)
            if answered is not None:
                answered.release()

    def _write_lines(self) -> None:
        if not self.file.exists():
            raise FileNotFoundError(2, "the file was removed", str(self.file))
        parts = []
        while self._lines:
            line = self._lines.popleft()
            parts.append(_encoded(line))
            if line["kind"] in _MANY:
                self._many += len(parts[-1])
                if self._many > self._limit / 8:
                    parts.pop()
        self._append(b"".join(parts))

    def _write_rows(self, patient: bool) -> None:
        content = b"".join(_encoded({"kind": schema.STEP, **row}) for row in self._ready(patient))
        if self._written + len(content) <= self._room:
            self._append(content)
        self._thin()

    def _ready(self, patient: bool) -> List[Row]:
        """Return the rows that can be written, without values that are missing."""
        rows: List[Row] = []
        now = time.time()
        while self._rows:
            row = self._rows[0]
            age = now - row["time"]
            # A second optimizer may still add its step to the last row.
            if patient and (len(self._rows) == 1 and age < 0.5 * TICK):
                break
            # The thread that trains puts the values in when they have come.
            if patient and age < PATIENCE and row.get("wait") is PENDING:
                break
            self._rows.popleft()
            rows.append({name: row[name] for name in schema.NAMES if row.get(name) not in (None, PENDING)})
        return rows

    def _thin(self) -> None:
        """Write fewer rows as the file comes near its bound: half as many in each half of what is left."""
        while self._room - self._written < self._room / (2 * self._every):
            self._every *= 2

    def _append(self, content: bytes) -> None:
        self._written += len(content)
        while content and self._number is not None:
            content = content[os.write(self._number, content) :]

    def _give_up(self, error: Exception) -> None:
        self.on = False
        self._close_file()
        self._rows.clear()
        self._lines.clear()
        why = (error.strerror or str(error)) if isinstance(error, OSError) else repr(error)
        log.on_every_rank(f"{VARIABLE}={self.folder}: rank {self.rank} stopped tracing ({why}). Training continues.")

    def _close_file(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            with contextlib.suppress(OSError):
                os.close(number)


def _put_aside(file: Path) -> None:
    """Give the file of an earlier process of this rank a number: nothing is overwritten."""
    if file.exists():
        names = (file.with_name(f"{file.stem}.{number}{file.suffix}") for number in itertools.count(1))
        file.rename(next(name for name in names if not name.exists()))


def _encoded(line: Row) -> bytes:
    for part in (line, line.get("finding", {})):
        for name in ("text", "where", "cause"):
            text = part.get(name)
            if isinstance(text, str) and len(text) > _LONGEST_TEXT:
                part[name] = text[:_LONGEST_TEXT] + "..."
    return (json.dumps(line, separators=(",", ":"), default=str) + "\n").encode("utf-8")
