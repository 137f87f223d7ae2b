"""The writer alone: its bound, waits that come later, files that are put aside, and disks that fail."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List

import pytest

from ddpfix import log
from ddpfix.trace import reader, schema, writer
from ddpfix.trace.writer import Writer


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[List[str]]:
    lines: List[str] = []
    monkeypatch.setattr(log, "on_every_rank", lines.append)
    yield lines


def row(step: int, **more: Any) -> Dict[str, Any]:
    return {"step": step, "time": time.time() - 1, "total": 0.25, "skipped": [1, 2], "wait": 0.5, **more}


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now


def made(folder: Path, threaded: bool = False, **more: Any) -> Writer:
    """A writer, by default without the thread that writes."""
    found = Writer(folder, 0, **more)
    found.line(schema.RUN, version=schema.VERSION, rank=0)
    with pytest.MonkeyPatch.context() as patch:
        if not threaded:
            there = SimpleNamespace(is_alive=lambda: not found._is_closing, join=lambda seconds: None)
            patch.setattr(writer, "Background", lambda run: there)
        assert found.open()
    return found


def steps(folder: Path) -> Dict[str, List[Any]]:
    return reader.read(folder).runs[0].steps


def test_a_long_run_stays_below_its_bound_and_has_rows_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(writer, "time", clock)
    # Ten steps a second.
    bound, count = 400_000, 10_000
    one = made(tmp_path, limit=bound)
    for step in range(1, count + 1):
        clock.now += 0.1
        one.row({**row(step), "time": clock.now})
        if not step % 10:
            one.flush(patient=True)
    one.close("ended")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= bound
    run = reader.read(tmp_path).runs[0]
    found = run.steps["step"]
    assert run.end is not None and found[:100] == list(range(1, 101)) and found[-1] > 0.9 * count
    apart = [after - before for before, after in zip(found, found[1:])]
    # Where fewer steps get a row, the next one may be nearer.
    assert set(apart) <= {2**power for power in range(12)} and max(apart) >= 4


def test_events_do_not_fill_the_bound(tmp_path: Path) -> None:
    one = made(tmp_path, limit=80_000)
    for number in range(2000):
        one.line(schema.EVENT, time=0.0, step=0, level="info", text=f"{number} " + "x" * 100)
    one.row(row(1))
    one.flush()
    for step in range(2, 2000):
        one.row(row(step))
    one.close("ended")
    run = reader.read(tmp_path).runs[0]
    assert run.steps["step"] == [1] and 50 < len(run.events) < 100 and run.end is not None


def test_waits_of_a_gpu_are_waited_for_and_order_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(tmp_path)
    waits = row(2, wait=writer.PENDING)
    for each in (row(1), waits, row(3)):
        one.row(each)
    one.flush(patient=True)
    assert steps(tmp_path)["step"] == [1]
    waits["wait"] = 0.125
    one.flush(patient=True)
    assert steps(tmp_path)["step"] == [1, 2, 3] and steps(tmp_path)["wait"] == [0.5, 0.125, 0.5]
    # One that never comes is left out after a while.
    one.row(row(4, wait=writer.PENDING))
    monkeypatch.setattr(writer, "PATIENCE", 0.5)
    one.flush(patient=True)
    one.close("ended")
    assert steps(tmp_path)["step"][-1] == 4 and steps(tmp_path)["wait"][-1] is None


def test_the_thread_writes_within_two_seconds_and_larger_batches_at_once(tmp_path: Path) -> None:
    one = made(tmp_path, threaded=True)
    for step, shape in ((1, [4, 9]), (2, [4, 9]), (3, [4, 10])):
        one.begins(step, shape)
        begun = reader.read(tmp_path).runs[0].begins
        if step < 3:
            one.row(row(step))
    assert [(row["step"], row.get("shape")) for row in begun] == [(1, [4, 9]), (2, None), (3, [4, 10])]
    time.sleep(2.2)
    run = reader.read(tmp_path).runs[0]
    assert run.steps["step"] == [1, 2] and run.end is None
    one.close("ended")


def test_the_head_is_there_at_once(tmp_path: Path) -> None:
    one = made(tmp_path)
    assert reader.read(tmp_path).runs[0].header == {"version": schema.VERSION, "rank": 0}
    one.close(None)


def test_files_of_an_earlier_process_are_put_aside(tmp_path: Path) -> None:
    for attempt in range(3):
        one = made(tmp_path)
        one.row(row(attempt + 1))
        one.close("ended")
    trace = reader.read(tmp_path)
    assert trace.runs[0].steps["step"] == [3]
    assert [reader.read_run(file).steps["step"] for file in trace.earlier[0]] == [[1], [2]]


@pytest.mark.parametrize("how", ["is a file", "is in a file"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, warned: List[str], how: str) -> None:
    (tmp_path / "there").write_text("")
    folder = tmp_path / "there" if how == "is a file" else tmp_path / "there" / "inside"
    one = Writer(folder, 3)
    assert not one.open() and not one.on
    (line,) = warned
    assert f"DDPFIX_TRACE={folder}: rank 3 stopped tracing" in line and "Training continues" in line
    one.row(row(1))
    one.close("ended")


def test_a_full_disk_ends_the_trace_with_one_warning(
    tmp_path: Path, warned: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path)
    one.row(row(1))
    one.flush()
    write = os.write

    def full(number: int, content: bytes) -> int:
        if number == one._number:
            if len(content) > 5:
                return write(number, content[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(number, content)

    monkeypatch.setattr(os, "write", full)
    for step in (2, 3):
        one.row(row(step))
        one.flush()
    monkeypatch.undo()
    assert not one.on and len(warned) == 1 and "No space left" in warned[0]
    # What was written in part is dropped.
    assert steps(tmp_path)["step"] == [1]
    one.close("ended")


def test_a_folder_that_vanishes_ends_the_trace_with_one_warning(tmp_path: Path, warned: List[str]) -> None:
    one = made(tmp_path / "in")
    one.flush()
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    (tmp_path / "in").rmdir()
    one.row(row(1))
    one.flush()
    one.flush()
    assert not one.on and len(warned) == 1 and "the file was removed" in warned[0]
    one.close("ended")


def test_an_error_is_written_at_once(tmp_path: Path) -> None:
    one = made(tmp_path, threaded=True)
    one.line(schema.EVENT, time=0.0, step=0, level="error", text="the last words")
    one.urgent()
    assert [event["text"] for event in reader.read(tmp_path).runs[0].events] == ["the last words"]
    one.close(None)
    assert reader.read(tmp_path).runs[0].end is None
