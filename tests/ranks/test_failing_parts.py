"""What a failure is told by, piece by piece: the sentence, and the proof that it has ended the program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ddpfix import user_code
from ddpfix.exchange import connection
from ddpfix.exchange.failure_records import PeerFailedError, Records
from ddpfix.monitor import processes
from ddpfix.monitor.exit import error_file, last_words
from ddpfix.rules import endings
from ddpfix.rules.facts import FAILED, UNDONE, Called, End
from tests.ranks import failing
from tests.support import ranks


def error_of(fails: Any) -> BaseException:
    with pytest.raises(BaseException) as raised:
        fails()
    return raised.value


def test_a_sentence_has_the_innermost_line_of_the_users_own() -> None:
    def shaped() -> None:
        torch.nn.Linear(2, 3)(torch.ones(1, 5))

    line = shaped.__code__.co_firstlineno + 1
    told = last_words.finding(3, 41, error_of(shaped)).line
    assert told.startswith("rank 3 failed in step 41: RuntimeError: ") and told.endswith(
        f"(test_failing_parts.py:{line})"
    )
    assert "\n" not in told


TORCHS = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that"
    " you can enable unused parameter detection by passing `find_unused_parameters=True`, and by \nmaking sure all"
)
OURS = (
    "ddpfix: 2 parameters got no gradient:\n    b (weight)\n    c\nddpfix: cause: b did not run\nddpfix: cure: here:"
    "\n    a()"
)


@pytest.mark.parametrize("how", ["in the message", "as a note"])
def test_of_an_error_that_ddpfix_has_explained_cause_and_cure_are_told(how: str) -> None:
    def fail() -> None:
        error = RuntimeError(f"{TORCHS}\n{OURS}" if how == "in the message" else TORCHS)
        error.__dict__["__notes__"] = [] if how == "in the message" else [OURS]
        raise error

    line = fail.__code__.co_firstlineno + 3
    assert last_words.finding(1, 2, error_of(fail)).line == (
        "rank 1 failed in step 2: RuntimeError: Expected to have finished reduction in the prior iteration before"
        f" starting a new one (test_failing_parts.py:{line}). 2 parameters got no gradient: b (weight), c;"
        " cause: b did not run; cure: here: a()"
    )


def test_an_error_of_a_worker_is_the_workers_own() -> None:
    def read() -> None:
        list(DataLoader(failing.Broken(), num_workers=1))

    assert last_words.finding(0, None, error_of(read)).line.startswith(
        "rank 0 failed: IndexError: no utterance 0 (failing.py:"
    )


def test_an_error_without_a_message_or_a_traceback() -> None:
    assert last_words.finding(0, None, ValueError()).line == "rank 0 failed: ValueError"


ENDS = """
import atexit, code, sys
from ddpfix.monitor.exit import last_words
from ddpfix.monitor.watch import MainThread
main = MainThread()
def report():
    printed = last_words.printed()
    print(main.is_over(), main.returned(), main.uncaught(), printed and printed.words)
atexit.register(report)
def hydra(code):
    try: 1 / 0
    except ZeroDivisionError: sys.exit(code)
def begin(code):
    try: hydra(code)
    except SystemExit as error:
        last_words.exits(error)
        raise
def last():
""".strip()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[][1]", "False list index out of range None"),
        ("begin(1)", "False None ZeroDivisionError: division by zero (<string>:10)"),
        # What a program has caught, and what is no error, is no failure of it.
        ("begin(0)", "False None None"),
        ("sys.exit(3)", "False None None"),
        # With a prompt, Python goes on.
        ("sys.ps1 = '>>> '; [][1]", "False None None"),
        ("raise KeyboardInterrupt", "False None None"),
        ("code.InteractiveInterpreter().runcode(compile('1/0', '<cell>', 'exec')); sys.exit(0)", "False None None"),
        ("sys.last_value = ValueError(); raise SystemExit(0)", "False None None"),
        ("pass", "True None None"),
        ("1; return", "True None None"),
    ],
)
def test_how_a_program_ends(line: str, told: str) -> None:
    script = f"{ENDS}\n    {line}\nlast()\n"
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == f"True {told}", done


def test_what_ranks_leave_for_each_other() -> None:
    store = torch.distributed.HashStore()
    one, other = (Records(lambda: store, rank) for rank in (0, 1))
    assert one.cause() is None
    found, later = (endings.failed([rank], 3, "ValueError (train.py:8)") for rank in (1, 0))
    assert other.claim(found) and not one.claim(later) and one.cause() == found
    assert other.cause() is None, "its own is no cause for it"


def test_who_takes_part_and_who_has_left() -> None:
    store = torch.distributed.HashStore()
    one, other, watching = (Records(lambda: store, rank) for rank in (0, 1, 1))
    assert one.ends() == [] and one.of(1) is None and one.alive([1]) == {}
    # The thread that gives no signs of life may come before the one that does, or after it.
    watching.enter()
    other.beat(7)
    watching.enter()
    there = one.alive([1])[1]
    assert (there.pid, there.step, there.beat) == (os.getpid(), 7, 1) and processes.state_of(there) != processes.GONE
    other.beat(8)
    assert one.of(1) != there
    end = End(1, FAILED, "rank 1 failed", called=Called({"train.py:8": 2}, "train.py:8"))
    other.leave(end)
    assert one.ends() == [end] and other.ends() == [] and one.number_of_ends() == 1
    left = one.of(1)
    assert left is not None and left.end == end and one.alive([1]) == {}, "who has told its end is not silent"
    one.leave(End(0, UNDONE))
    assert other.ends() == [] and one.number_of_ends() == 1 and other.alive([0]) == {}, "it trains on"
    for rank in range(2, 7):
        Records(lambda: store, rank).leave(End(rank, FAILED))
    assert [each.rank for each in one.ends()] == [1, 2, 3, 4], "who comes later has failed because of these"


def test_a_socket_is_known_by_more_than_its_descriptor() -> None:
    """A descriptor that is used again is another connection's."""
    ours, theirs = socket.socketpair()
    number = os.fstat(ours.fileno()).st_ino
    assert not connection._is_closed(number, ours.fileno())
    theirs.close()
    assert connection._is_closed(number, ours.fileno())
    descriptor = ours.fileno()
    other, end = socket.socketpair()
    os.dup2(other.fileno(), descriptor)
    end.close()
    assert connection._is_closed(os.fstat(descriptor).st_ino, descriptor)
    assert not connection._is_closed(number, descriptor)
    ours.close()
    other.close()


class OwnStore(torch.distributed.Store):
    """A store in Python."""


def test_a_store_of_the_program_is_told_from_torchs() -> None:
    store, prefixed = torch.distributed.HashStore(), torch.distributed.PrefixStore
    assert connection.is_torchs(store) and connection.is_torchs(prefixed("a", prefixed("b", store)))
    assert not connection.is_torchs(OwnStore())
    if hasattr(prefixed, "underlying_store"):
        assert not connection.is_torchs(prefixed("a", OwnStore()))


def test_no_line_of_ours_is_the_users() -> None:
    """Patches are beside the engine in a checkout, and within it in a wheel."""
    from ddpfix.patches.torch.data import uneven

    assert not user_code.is_users(uneven.__file__) and not user_code.is_users(user_code.__file__)
    assert user_code.is_users(__file__)


@pytest.mark.parametrize(
    "text",
    [
        "[rank 1]:[../pair.cc:553] Connection closed by peer [10.0.0.2]:29500",
        "NCCL communicator was aborted on rank 1.",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600000 ms",
        "[Rank 1] HCCL communicator was aborted",
    ],
)
def test_what_only_says_that_another_rank_is_gone(text: str) -> None:
    assert last_words.follows(RuntimeError(text)) and not last_words.follows(ValueError(text))


def test_an_error_about_another_rank_is_no_cause() -> None:
    error = PeerFailedError(endings.failed([1], 3, "KeyError: 'text'"))
    assert str(error) == "ddpfix: rank 1 failed in step 3: KeyError: 'text' (this rank ends because of it)"
    assert last_words.finding(0, 3, error).kind == endings.FOLLOWED


@pytest.mark.parametrize("text", ["CUDA out of memory", "NCCL error: unhandled system error", "mat1 and mat2 shapes"])
def test_what_is_an_error_of_its_own(text: str) -> None:
    assert not last_words.follows(RuntimeError(text))


# The file in which torch elastic looks for the error of a rank: test_failures.py has its summary.


def written_by(error: Exception) -> bool:
    try:
        raise error
    except type(error):
        return error_file.write(error)


def test_a_file_that_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert written_by(KeyError("first"))
    written = path.read_text()
    assert "KeyError: 'first'" in json.loads(written)["message"]["message"]
    assert not written_by(ValueError("second"))
    assert path.read_text() == written


def test_without_elastic_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert not error_file.write(ValueError("alone"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    assert not error_file.write(ValueError("no such folder"))


FULL = """
import os, resource
from ddpfix.monitor.exit import error_file

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    raise ValueError("the cause")
except ValueError as error:
    print(error_file.write(error))
print(os.listdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])))
"""


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    """torchrun reads the file of each rank that failed, and cannot go on if it is damaged."""
    pytest.importorskip("resource")
    environ = ranks.environment({"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")})
    command = [sys.executable, "-c", FULL]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["False", "[]"], done
