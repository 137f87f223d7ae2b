"""What one rank says of another one's end: two ranks in one process, on one store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest
from torch import distributed

from ddpfix import log
from ddpfix.exchange import failure_records
from ddpfix.monitor.exit import last_words, process_end
from ddpfix.monitor.exit.process_end import ProcessEnd
from ddpfix.monitor.watch import Rank
from ddpfix.rules import endings, facts

GONE = RuntimeError("[x.cc:1] Connection closed by peer [127.0.0.1]:5")
Line = Tuple[str, Optional[Dict[str, Any]]]


class Program:
    """A main thread that is over: by an error, or at its end."""

    def __init__(self, error: Optional[BaseException]) -> None:
        self._error = error

    def is_over(self) -> bool:
        return True

    def returned(self) -> bool:
        return self._error is None

    def uncaught(self) -> Optional[BaseException]:
        return self._error


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[List[Line]]:
    """The errors that ranks log, with their findings; nobody waits for another one for long."""
    lines: List[Line] = []
    monkeypatch.setattr(process_end, "LINGER", 0.0)
    monkeypatch.setattr(process_end, "SEARCH", 0.1)
    monkeypatch.setattr(ProcessEnd, "_pause", lambda self: 0.1)
    log.NOTED.listeners.append(lambda level, text, finding: lines.append((text, finding)) if level == "error" else None)
    yield lines
    log.NOTED.listeners.pop()


@pytest.fixture
def store() -> Any:
    return distributed.HashStore()


def rank(store: Any, number: int, error: Optional[BaseException] = None, step: int = 3) -> ProcessEnd:
    """A rank that has given a sign of life, and whose program ends now."""
    made = ProcessEnd(store, Rank(number, 2, lambda: step))
    made._main = Program(error)  # type: ignore[assignment]
    made._records.beat(step)
    return made


def test_the_cause_is_said_by_all_and_written_for_elastic(
    store: Any, said: List[Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    waits, later = rank(store, 0), rank(store, 0, GONE)
    rank(store, 1, IndexError("no such utterance"))._leave()
    cause = endings.failed([1], 3, "IndexError: no such utterance")
    assert said == [(cause.line, cause.data())]
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == "IndexError: no such utterance"
    # One that waits says it at its second look, and one that fails because of it as its last words.
    waits._read_cause()
    assert len(said) == 1
    waits._read_cause()
    waits._read_cause()
    later._leave()
    above = endings.above(cause)
    assert said[1:] == [*[(cause.line, cause.data())] * 2, (above.line, above.data())]
    there = later._records.of(0)
    assert there is not None and there.end is not None and there.end.how == facts.FAILED


def test_a_rank_that_is_done_first_is_named(store: Any, said: List[Line]) -> None:
    rank(store, 1)._leave()
    rank(store, 0, GONE, step=4)._leave()
    ((text, finding),) = said
    assert text.startswith("rank 1 reached the end of its program in step 3, and this rank is in step 4. With uneven")
    assert finding is not None and (finding["kind"], finding["ranks"]) == (endings.LEFT, [1])


@pytest.mark.parametrize("returns", [False, True])
def test_the_error_that_hydra_prints_before_it_exits(
    store: Any, said: List[Line], monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """Whoever catches that exit, and comes to the end of the program, has not failed."""
    monkeypatch.setattr(last_words, "_PRINTED", [last_words.Printed("KeyError: 'text' (aug.py:12)", "", False)])
    exits = rank(store, 1)
    exits._main.returned = lambda: returns  # type: ignore[method-assign]
    exits._leave()
    end = exits._records.of(1)
    assert [text for text, _ in said] == ([] if returns else ["rank 1 failed in step 3: KeyError: 'text' (aug.py:12)"])
    assert end is not None and end.end is not None and end.end.how == (facts.ENDED if returns else facts.FAILED)


@pytest.mark.parametrize("how", [facts.LEFT, facts.UNDONE])
def test_a_rank_that_goes_on_without_its_group_or_ddpfix(store: Any, said: List[Line], how: str) -> None:
    left = rank(store, 1)
    left._how = how
    left._leave()
    rank(store, 0, GONE)._leave()
    ((text, _),) = said
    told = "rank 1 left its process group in step 3"
    assert text == (told if how == facts.LEFT else f"rank 0 failed in step 3: RuntimeError: {GONE}")


@pytest.mark.skipif(not failure_records.space(), reason="only Linux tells what processes have in common")
@pytest.mark.parametrize(("is_here", "beats"), [(True, 1), (False, 1), (False, -1)])
def test_a_rank_without_a_last_word(store: Any, said: List[Line], is_here: bool, beats: int) -> None:
    """One that has given no sign of life is not silent."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    killed = rank(store, 1)
    space = failure_records.space() if is_here else "another machine"
    killed._records._own = killed._records._own._replace(pid=child.pid, host="node", space=space, beat=beats)
    killed._records.beat(2)
    rank(store, 0, GONE)._leave()
    ((text, finding),) = said
    if beats < 0:
        assert text == f"rank 0 failed in step 3: RuntimeError: {GONE}"
        return
    process = f", last seen in step 2, rank 0 is in step 3: process {child.pid} on node has"
    told = f"ended without a word{process} exited. " if is_here else f"is silent{process} given no sign of life for 0 s"
    assert text.startswith(f"rank 1 {told}") and finding is not None
    assert finding["kind"] == (endings.KILLED if is_here else endings.SILENT)
