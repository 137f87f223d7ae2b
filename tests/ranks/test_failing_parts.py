"""What a failure is told by, piece by piece: the sentence, the end of the program, who may act upon a time-out."""

from __future__ import annotations

import contextlib
import linecache
import os
import subprocess
import sys
import time
from typing import Any, Dict, Iterator

import pytest
import torch
from torch.utils.data import DataLoader

from ddpfix.ranks import bulletin, collectives, exits, failure_watch, handlers, last_words
from ddpfix.ranks.bulletin import Bulletin, End, Life
from ddpfix.ranks.connection import Connection, StoreLostError
from tests.ranks import failing


def error_of(fails: Any) -> BaseException:
    with pytest.raises(BaseException) as raised:
        fails()
    return raised.value


def test_a_sentence_has_the_innermost_line_of_the_users_own() -> None:
    def shaped() -> None:
        torch.nn.Linear(2, 3)(torch.ones(1, 5))

    line = shaped.__code__.co_firstlineno + 1
    told = last_words.sentence(3, 41, error_of(shaped))
    assert told.startswith("rank 3 failed in step 41: RuntimeError: ") and told.endswith(
        f"(test_failing_parts.py:{line})"
    )
    assert "\n" not in told


def test_an_error_of_a_worker_is_the_workers_own() -> None:
    def read() -> None:
        list(DataLoader(failing.Broken(), num_workers=1))

    assert last_words.sentence(0, None, error_of(read)).startswith(
        "rank 0 failed: IndexError: no utterance 0 (failing.py:"
    )


def test_an_error_without_a_message_or_a_traceback() -> None:
    assert last_words.sentence(0, None, ValueError()) == "rank 0 failed: ValueError"


@pytest.mark.parametrize(
    ("block", "acts"),
    [
        ("WAIT()", False),
        ("try:\n    WAIT()\nexcept RuntimeError:\n    save()", True),
        ("try:\n    WAIT()\nexcept Exception:\n    raise", True),
        ("try:\n    WAIT()\nexcept:\n    pass", True),
        ("try:\n    WAIT()\nexcept (KeyError, mine.Error):\n    pass", True),
        ("try:\n    WAIT()\nexcept KeyboardInterrupt:\n    pass", False),
        ("try:\n    WAIT()\nexcept (KeyError, OSError):\n    pass", False),
        ("try:\n    WAIT()\nfinally:\n    save()", True),
        ("try:\n    [][1]\nexcept IndexError:\n    WAIT()", False),
        ("import contextlib\nwith contextlib.suppress(RuntimeError):\n    WAIT()", True),
        ("import contextlib\nwith contextlib.nullcontext():\n    WAIT()", False),
        ("def run():\n    WAIT()\ntry:\n    run()\nexcept RuntimeError:\n    pass", True),
    ],
)
def test_who_may_act_upon_a_time_out(block: str, acts: bool) -> None:
    found = []

    def wait() -> None:
        frame = sys._getframe(1)
        inner = frame.f_back if frame.f_code.co_name == "run" else None
        found.append(handlers._acts(frame) or (inner is not None and handlers._acts(inner)))

    name = f"/work_of_a_user/{abs(hash(block))}.py"
    linecache.cache[name] = (len(block), None, block.splitlines(True), name)
    exec(compile(block, name, "exec"), {"WAIT": wait, "save": lambda: None})
    assert found == [acts]


def test_without_its_source_a_program_may_act() -> None:
    found = []
    exec("WAIT()", {"WAIT": lambda: found.append(handlers.may_handle(sys._getframe(1)))})
    assert found == [True]


@pytest.fixture
def noting() -> Iterator[None]:
    exits.watch()
    yield
    exits.forget()


def test_exits_are_noted_with_what_they_came_from(noting: None) -> None:
    def leave(code: Any) -> Any:
        with contextlib.suppress(SystemExit):
            sys.exit(code)
        return exits.last()

    assert leave(3).code == 3 and "test_failing_parts.py" in leave(3).place
    assert leave(0) is None and leave(None) is None and leave("no data").code == "no data"
    try:
        raise ConnectionError("broken pipe")
    except ConnectionError:
        known = leave(1)
    assert known.handled.startswith("ConnectionError: broken pipe (") and not known.follows
    # What passes the code on knows no more.
    assert leave(1).handled == known.handled
    assert leave(2).handled == ""


def test_exits_are_given_back() -> None:
    before = sys.exit
    exits.watch()
    assert sys.exit is not before
    exits.forget()
    assert sys.exit is before


ENDS = """
import sys, threading
from ddpfix.ranks.main_thread import MainThread
main = MainThread()
def look():
    threading.main_thread().join()
    print(main.is_over(), main.returned())
threading.Thread(target=look).start()
def last():
    {}
last()
"""


@pytest.mark.parametrize(
    ("line", "returned"),
    [("pass", True), ("[][1]", False), ("sys.exit(0)", False), ("raise SystemExit", False), ("1; return", True)],
)
def test_how_a_program_ended(line: str, returned: bool) -> None:
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    script = ENDS.format(line)
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert done.stdout.split() == ["True", str(returned)], done.stderr


def test_a_collective_that_another_rank_never_began() -> None:
    assert collectives.is_beyond({"0": 5}, {"0": 4})
    assert not collectives.is_beyond({"0": 4}, {"0": 4}) and not collectives.is_beyond({"0": 3}, {"0": 4})
    # Groups of the one alone, and a rank that tells nothing.
    assert not collectives.is_beyond({"0": 4, "1": 9}, {"0": 4}) and not collectives.is_beyond({"0": 5}, {})


def test_what_ranks_leave_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(Connection, "store", lambda self: store)
    one, other = (Bulletin(Connection.__new__(Connection), rank) for rank in (0, 1))
    assert one.ends() == [] and one.cause() is None and one.life(1) is None
    other.beat(7)
    life = one.life(1)
    assert life is not None and (life.pid, life.step, life.beat) == (os.getpid(), 7, 1)
    assert not bulletin.is_gone(life)
    other.beat(8)
    assert one.life(1) != life
    assert other.claim("rank 1 failed") and not one.claim("rank 0 failed") and one.cause() == "rank 1 failed"
    other.leave(End(1, "rank 1 failed", {"0": 4}))
    assert one.ends() == [End(1, "rank 1 failed", {"0": 4})] and other.ends() == []
    # Who has told its end is not silent.
    assert one.life(1) is None


@pytest.mark.skipif(not bulletin.space(), reason="only Linux tells what processes have in common")
def test_a_process_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    known = Life("host", bulletin.space(), child.pid, None, 1)
    end = time.monotonic() + 30
    # It is gone for others as soon as it has ended, also if nobody has asked for its code.
    while not bulletin.is_gone(known) and time.monotonic() < end:
        time.sleep(0.05)
    assert bulletin.is_gone(known)
    child.wait()
    assert bulletin.is_gone(known)
    assert not bulletin.is_gone(known._replace(space="another machine"))


SERVER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(torch.distributed.PrefixStore, "clone"), reason="the connection is the main thread's")
def test_a_server_that_has_ended_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdin is not None
    store = torch.distributed.TCPStore("127.0.0.1", int(server.stdout.readline()), None, False)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 0)
    connection = Connection(store, "failed")
    assert connection._socket is not None
    connection.store().set("key", "value")
    server.stdin.close()
    server.wait()
    with pytest.raises(StoreLostError):
        connection.store()
    connection.close()


def test_a_toolkit_may_tell_its_failures_itself() -> None:
    told: Dict[bool, bool] = {}
    for now in (True, False):
        (lambda: failure_watch.tell_elsewhere("toykit"))() if now else failure_watch.tell_here()
        told[now] = failure_watch.is_told_elsewhere()
    assert told == {True: True, False: False}


def test_no_line_of_ours_is_the_users() -> None:
    """Patches are beside the engine in a checkout, and within it in a wheel."""
    from ddpfix.patches.torch import uneven

    assert not last_words.is_users(uneven.__file__) and not last_words.is_users(last_words.__file__)
    assert last_words.is_users(__file__)
