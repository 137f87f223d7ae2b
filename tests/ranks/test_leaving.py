"""A process that ends while a thread of gloo lets go of its last work (pytorch issue 190489)."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import torch
from ddpfix.patches.torch.jobs import gloo_exit
from torch import distributed

import ddpfix
from ddpfix import background, log
from ddpfix.system import System
from tests.support import ranks

pytestmark = pytest.mark.patches("torch.leaving")
SCRIPT = Path(__file__).with_name("last_work.py")
# Handlers of a process with a group: from CPython 3.14 on there is nothing to wait for.
EXPECTED = int(sys.version_info < (3, 14))


def ends(folder: Path, **environ: str) -> Tuple[int, str]:
    return ranks.run([*ranks.elastic(2), str(SCRIPT)], ranks.environment(environ), folder, 60)


@pytest.mark.skipif(not os.path.isdir(gloo_exit._THREADS), reason="only Linux shows what a thread does")
@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, marks=pytest.mark.sampled(inside=False), id="plain"),
        pytest.param({"DDPFIX": "1", "DDPFIX_TORCH_LEAVING": "0"}, id="off"),
    ],
)
def test_without_the_patch_the_job_fails_when_its_work_is_done(tmp_path: Path, environ: Any) -> None:
    code, screen = ends(tmp_path, **environ)
    if not gloo_exit.ENDS_THREADS:
        assert code == 0 and screen.count("done") == 2, screen
        return
    # Mostly SIGABRT ("terminate called without an active exception"); what CPython has freed by then may break first.
    assert code != 0 and screen.count("done") == 2 and "exitcode  : -" in screen, screen


@pytest.mark.skipif(not os.path.isdir(gloo_exit._THREADS), reason="only Linux shows what a thread does")
def test_with_it_the_job_ends_well(tmp_path: Path) -> None:
    code, screen = ends(tmp_path, DDPFIX="1")
    assert code == 0 and screen.count("done") == 2, screen


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> List[Any]:
    """The handlers at the exit of this process, as far as they are registered while a test runs.

    The first ``tmp_path`` of a run registers one of pytest's, so it is made ahead.
    """
    found: List[Any] = []
    monkeypatch.setattr(atexit, "register", found.append)
    monkeypatch.setattr(atexit, "unregister", lambda handler: found.remove(handler) if handler in found else None)
    return found


def waits(handlers: List[Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the handlers wait for gloo's threads."""
    waited: List[None] = []
    with monkeypatch.context() as replaced:
        replaced.setattr(gloo_exit, "settle", lambda: waited.append(None))
        for handler in handlers:
            handler()
    return len(waited)


def test_the_handler_is_there_while_a_group_is_and_until_undo(
    handlers: List[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ddpfix.activate(log="off")
    for store in "abc":
        assert waits(handlers, monkeypatch) == 0
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/{store}", rank=0, world_size=1)
        assert waits(handlers, monkeypatch) == EXPECTED
        if store != "c":
            distributed.destroy_process_group()
    ddpfix.deactivate()
    assert waits(handlers, monkeypatch) == 0
    distributed.destroy_process_group()


def test_a_group_that_is_up_already_counts(
    handlers: List[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    ddpfix.activate(log="off")
    assert waits(handlers, monkeypatch) == EXPECTED
    ddpfix.deactivate()
    distributed.destroy_process_group()


class Clock:
    """Time that passes only while something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(System, "monotonic", clock.monotonic)
    monkeypatch.setattr(System, "pause", clock.pause)
    return clock


@pytest.mark.parametrize(
    ("ends", "share", "taken"),
    [
        ({"R": 0, "S": 0}, 1, 0),
        ({"R": 0, "S": 99}, 1, 0.01),
        ({"R": 0.1, "S": 99}, 1, 0.1),
        ({"R": 99, "S": 99}, 0.5, 1),
        ({"R": 3, "S": 99}, 0.1, 3),
        ({"R": 99, "S": 99}, 0.01, 10),
    ],
    ids=["none left", "idle", "running for a while", "running for ever", "a busy machine", "busy for ever"],
)
def test_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, ends: Dict[str, float], share: float, taken: float
) -> None:
    def threads() -> List[Any]:
        return [gloo_exit._Thread("", state, share * clock.now) for state, end in ends.items() if clock.now < end]

    monkeypatch.setattr(gloo_exit, "_threads", threads)
    gloo_exit.settle()
    assert clock.now == pytest.approx(taken, abs=2 * gloo_exit._PAUSE)


def test_where_threads_cannot_be_seen_it_takes_ten_milliseconds(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(gloo_exit, "_THREADS", "/nowhere")
    gloo_exit.settle()
    assert clock.now == pytest.approx(gloo_exit._SHORT, abs=2 * gloo_exit._PAUSE)


def test_threads_of_python_are_not_waited_for() -> None:
    running = threading.Event()

    def spin() -> None:
        while not running.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert thread.native_id not in gloo_exit._others()
    finally:
        running.set()
        thread.join()


def test_neither_ours_nor_the_current_one_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked child, CPython tells the number that the main thread has in the parent."""
    numbers: List[int] = []
    over = threading.Event()

    def run() -> None:
        numbers.append(threading.get_native_id())
        over.wait(20)

    ours = background.Background(run)
    try:
        while not numbers:
            over.wait(0.01)
        monkeypatch.setattr(threading.main_thread(), "_native_id", 1)
        assert not {*numbers, threading.get_native_id()} & set(gloo_exit._others())
    finally:
        over.set()
        ours.join(20)


def test_a_thread_of_ours_is_not_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by what it logs: a record of logging asks for the current thread, which threading then lists."""
    logger = logging.Logger("ddpfix")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    monkeypatch.setattr(log, "_logger", lambda: logger)
    before, during = threading.enumerate(), []

    def run() -> None:
        log.error("a line")
        during.extend(threading.enumerate())

    ours = background.Background(run)
    ours.join(20)
    assert during == before == threading.enumerate() and not ours.is_alive()
    assert capsys.readouterr().err == "a line\n" and not background.NATIVE & {threading.get_native_id()}


@pytest.mark.skipif(not os.path.isdir(gloo_exit._THREADS), reason="only Linux shows what a thread does")
@pytest.mark.parametrize("named", [True, False])
def test_threads_of_others_are_not_waited_for_where_gloos_have_a_name(
    named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that spins, as one of CUDA does, has no part in it; where gloo's threads have no name, it may be gloo's."""
    over, numbers = threading.Event(), []

    def spin() -> None:
        numbers.append(threading.get_native_id())
        while not over.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        while not numbers:
            pass
        monkeypatch.setattr(gloo_exit, "_others", lambda: list(numbers))
        monkeypatch.setattr(gloo_exit, "_NAMED", named)
        assert [each.state != "" for each in gloo_exit._threads()] == ([] if named else [True])
        assert gloo_exit._any_left() is not named
    finally:
        over.set()
        thread.join()


def test_gloos_threads_have_their_name_where_they_are_told_by_it(tmp_path: Path) -> None:
    """A release in which they have another name is not to end jobs again."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not (gloo_exit._NAMED and library.exists()):
        pytest.skip(f"torch {torch.__version__}: all threads are looked at")
    assert gloo_exit._NAME.encode() in library.read_bytes()
