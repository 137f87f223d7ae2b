"""One rank fails: every rank that fails has the cause as its last words, no rank is ended, and nothing else is said."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

import pytest

from tests.ranks import failing
from tests.support import ranks

SCRIPT = Path(failing.__file__)
# Left to cells and nox -s rest.
LONG = pytest.mark.sampled(inside=False, cells=True)


class Job(NamedTuple):
    """How a job under torchrun has ended: its exit code, what torchrun said, what each rank said, and the seconds."""

    code: int
    summary: str
    ranks: List[str]
    seconds: float

    def last_words(self) -> List[str]:
        """The last line of each rank."""
        return [(text.strip().splitlines() or [""])[-1] for text in self.ranks]


def job(folder: Path, how: str, *words: str, limit: float = 90, size: int = 2, **environ: str) -> Job:
    folder.mkdir(exist_ok=True)
    logs = folder / "logs"
    command = [*ranks.elastic(size), "--log_dir", str(logs), "--redirects", "3", *words, str(SCRIPT), how]
    begun = time.monotonic()
    code, summary = ranks.run(command, ranks.environment(environ), folder, limit)
    seconds = time.monotonic() - begun
    told = []
    for rank in range(size):
        files = sorted(
            logs.glob(f"**/attempt_*/{rank}/std*.log"), key=lambda file: (file.parts[-3], file.name[3] != "o")
        )
        told.append("".join(file.read_text(errors="replace") for file in files))
    return Job(code, summary, told, seconds)


def background(folder: Path, how: str) -> List[Tuple[str, int]]:
    """The words and the exit code of each rank where no launcher ends the others."""
    words = [sys.executable, str(SCRIPT), how]
    ended = ranks.side_by_side([words, words], ranks.of_a_shell(2, {"DDPFIX": "1"}), folder, 100)
    return [(each.output + each.errors, each.code) for each in ended]


LINE = r"\(failing\.py:\d+\)"
# The last words of both ranks.
FAILURES: Dict[str, str] = {
    "raises": rf"rank 1 failed in step 7: IndexError: no such utterance {LINE}",
    "worker": rf"rank 1 failed in step 7: IndexError: no utterance 0 {LINE}",
}


def test_unpatched_the_others_name_the_connection_and_the_summary_has_nothing(tmp_path: Path) -> None:
    found = job(tmp_path, "raises")
    assert found.code == 1 and "error_file: <N/A>" in found.summary, found
    assert "torch.distributed.elastic.multiprocessing.errors.ChildFailedError" in found.summary, found
    assert re.search("Connection (closed|reset) by peer", found.ranks[0]), found
    assert "no such utterance" not in found.ranks[0] + found.summary, found


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("torch.failures")
def test_switched_off_it_is_as_in_plain_torch(tmp_path: Path) -> None:
    found = job(tmp_path, "raises", DDPFIX="1", DDPFIX_TORCH_FAILURES="0")
    assert "error_file: <N/A>" in found.summary and "no such utterance" not in found.ranks[0], found


@pytest.mark.patches("torch.failures")
@pytest.mark.parametrize("how", [pytest.param(how, marks=LONG if how != "raises" else ()) for how in FAILURES])
def test_every_rank_has_the_cause_as_its_last_words(tmp_path: Path, how: str) -> None:
    found = job(tmp_path, how, DDPFIX="1")
    assert found.code == 1 and found.seconds < 30, found
    for words in found.last_words():
        assert re.fullmatch(f"ddpfix: {FAILURES[how]}", words), found
    cause = found.summary[found.summary.index("Root Cause") :]
    assert "error_file: <N/A>" not in cause and "rank      : 1" in cause, found
    assert "failing.py" in cause, found


@pytest.mark.patches("torch.failures")
def test_ranks_that_print_into_one_stream_say_it_once(tmp_path: Path) -> None:
    command = [*ranks.elastic(3), str(SCRIPT), "raises"]
    code, output = ranks.run(command, ranks.environment({"DDPFIX": "1"}), tmp_path, 90)
    words = [line for line in output.splitlines() if line.startswith("ddpfix: rank 1 failed in step 7: IndexError")]
    assert code == 1 and len(words) == 1, output


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("torch.failures")
def test_a_rank_that_leaves_its_loop_early_is_named(tmp_path: Path) -> None:
    found = job(tmp_path, "early", DDPFIX="1")
    assert found.code == 1 and found.seconds < 30, found
    told = (
        "ddpfix: rank 1 reached the end of its program in step 7, and this rank is in step 8. With uneven data,"
        " DDPFIX_UNEVEN=stop or pad ends the epoch on all ranks together"
    )
    assert found.last_words() == [told, "done"], found
    assert "error_file: <N/A>" not in found.summary and "Connection" in found.summary, found


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("torch.failures")
def test_a_rank_that_is_killed_is_told_by_its_process(tmp_path: Path) -> None:
    found = background(tmp_path, "killed")
    # gloo of torch 2.8 says on each rank that it is connected.
    of_its_own = [line for line in found[1][0].splitlines() if not line.startswith("[Gloo] Rank")]
    assert (of_its_own, found[1][1]) == ([], -9) and found[0][1] == 1, found
    words = found[0][0].strip().splitlines()[-1]
    seen = r"last seen in step \d, rank 0 is in step \d"
    assert re.search(
        rf"rank 1 ended without a word, {seen}: process \d+ on \S+ has exited\. It was ended by SIGKILL", words
    ), found


@LONG
def test_unpatched_a_rank_waits_for_one_that_cannot_come(tmp_path: Path) -> None:
    found = job(tmp_path, "left_open", limit=30)
    assert found.code == ranks.OVERDUE and "no such utterance" in found.ranks[1], found


@LONG
@pytest.mark.patches("torch.failures")
def test_a_rank_that_waits_is_told_the_cause_and_waits_on(tmp_path: Path) -> None:
    """The process of the failed one is still there: a thread keeps it, and its connections."""
    found = job(tmp_path, "left_open", limit=45, DDPFIX="1")
    assert found.code == ranks.OVERDUE, found
    for words in found.last_words():
        assert re.search(FAILURES["raises"], words), found


@LONG
@pytest.mark.patches("torch.failures")
def test_a_job_that_elastic_restarts_begins_anew(tmp_path: Path) -> None:
    found = job(tmp_path, "restarted", "--max_restarts", "1", DDPFIX="1")
    assert found.code == 0 and all(text.count("done") == 1 for text in found.ranks), found
    assert "failed in step" in found.ranks[0] and "failed in step" in found.ranks[1], found


@LONG
@pytest.mark.patches("torch.failures")
def test_a_forked_child_that_fails_is_no_rank(tmp_path: Path) -> None:
    found = job(tmp_path, "forked", DDPFIX="1")
    assert found.code == 0 and all("done" in text for text in found.ranks), found
    assert not re.search(r"rank \d (failed|came|exited|left|ended)", str(found.ranks)), found


@LONG
@pytest.mark.patches("torch.failures")
def test_a_rank_that_works_on_is_not_ended(tmp_path: Path) -> None:
    """The other one has failed, when they needed each other no more."""
    found = background(tmp_path, "failed_last")
    assert [code for _, code in found] == [0, 1] and "done" in found[0][0], found
    # Nor does torch complain that the store is gone.
    assert "TCPStore" not in found[0][0] + found[1][0], found
