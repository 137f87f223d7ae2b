"""The writer alone: its bound, values that come later, files that are put aside, and disks that fail."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest

from ddpfix import log
from ddpfix.trace import reader, schema, writer
from ddpfix.trace.writer import Writer

PLACE: Tuple[int, str, float] = (7, "backward", 0.0)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[List[str]]:
    lines: List[str] = []
    monkeypatch.setattr(log, "on_every_rank", lines.append)
    yield lines


def row(step: int, **more: Any) -> Dict[str, Any]:
    return {"step": step, "time": time.time() - 1, "total": 0.25, "skipped": [1, 2], "loss": 0.5, **more}


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    perf_counter = time


def made(folder: Path, **more: Any) -> Writer:
    """A writer whose thread writes nothing by itself."""
    found = Writer(folder, 0, lambda: (0, "other", time.perf_counter()), **more)
    found.line(schema.RUN, version=schema.VERSION, rank=0)
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
    found, every = run.steps["step"], run.steps["every"]
    assert run.end is not None and found[:100] == list(range(1, 101)) and every[0] is None
    assert found == sorted(found) and found[-1] > 0.9 * count
    known = [number for number in every if number is not None]
    assert known == sorted(known) and set(known) <= {2**power for power in range(1, 12)} and max(known) >= 4
    assert all(step % (number or 1) == 0 for step, number in zip(found, every))


def test_events_do_not_fill_the_bound(tmp_path: Path) -> None:
    one = made(tmp_path, limit=80_000)
    for number in range(2000):
        one.line(schema.EVENT, time=0.0, step=0, level="info", text=f"{number} " + "x" * 100)
    one.row(row(1))
    one.close("ended")
    run = reader.read(tmp_path).runs[0]
    assert run.steps["step"] == [1] and 50 < len(run.events) < 100 and run.end is not None


def test_values_of_a_gpu_are_waited_for_and_order_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def later() -> Optional[float]:
        raise AssertionError("only the thread that trains asks for a value")

    one = made(tmp_path)
    waits = row(2, loss=later)
    for each in (row(1), waits, row(3)):
        one.row(each)
    one.flush(patient=True)
    assert steps(tmp_path)["step"] == [1]
    waits["loss"] = 0.125
    one.flush(patient=True)
    assert steps(tmp_path)["step"] == [1, 2, 3] and steps(tmp_path)["loss"] == [0.5, 0.125, 0.5]
    # One that never comes is left out after a while.
    one.row(row(4, loss=later))
    monkeypatch.setattr(writer, "PATIENCE", 0.5)
    one.flush(patient=True)
    one.close("ended")
    assert steps(tmp_path)["step"][-1] == 4 and steps(tmp_path)["loss"][-1] is None


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.row(row(1, loss=float("nan"), norm=float("inf")))
    one.close("ended")
    found = steps(tmp_path)
    assert found["loss"][0] != found["loss"][0] and found["norm"] == [float("inf")]


def test_the_thread_writes_within_two_seconds_and_says_where_it_stands(tmp_path: Path) -> None:
    one = Writer(tmp_path, 0, lambda: PLACE)
    one.line(schema.RUN, version=schema.VERSION, rank=0)
    assert one.open()
    one.row(row(1))
    time.sleep(2.2)
    run = reader.read(tmp_path).runs[0]
    assert run.steps["step"] == [1] and run.end is None
    assert [(each["step"], each["phase"]) for each in run.stalls] == [(7, "backward")]
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
    one = Writer(folder, 3, lambda: PLACE)
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
    one = made(tmp_path)
    one.line(schema.EVENT, time=0.0, step=0, level="error", text="the last words")
    one.urgent()
    assert [event["text"] for event in reader.read(tmp_path).runs[0].events] == ["the last words"]
    one.close(None)
    assert reader.read(tmp_path).runs[0].end is None
