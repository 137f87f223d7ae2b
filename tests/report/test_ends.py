"""What the report says of ranks that failed, were killed or stood still: the cause first, with names and the fix."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from ddpfix.cli.report import findings, page, summary
from ddpfix.rules import endings
from ddpfix.rules.finding import BAD, GOOD, Finding
from ddpfix.rules.hang import sentences
from ddpfix.rules.no_gradient import causes
from tests.support import traces
from tests.support.pages import Page

ERROR = "RuntimeError: Expected to have finished reduction in the prior iteration (train.py:12)"
CODE = "    DistributedDataParallel(model, find_unused_parameters=True)"
DIAGNOSIS = Finding(
    causes.BRANCH,
    [0],
    "2 parameters got no gradient on rank 0 in step 7, the same on all ranks:\n    rare (all 2 parameters)",
    "rare was not called in this step",
    f"paste this line (without an edit: DDPFIX_UNUSED=late):\n{CODE}",
)
FAILED = endings.failed([1], 8, ERROR, "2 parameters got no gradient: rare")
OTHERS = ("layers", "time", "memory", "unused")


def event(found: Finding, time: float, level: str = "error") -> Dict[str, Any]:
    return {"kind": "event", "level": level, "text": found.line, "time": time, "step": 7, "finding": found.data()}


def run(
    folder: Path,
    events: Dict[int, List[Dict[str, Any]]],
    ends: Dict[int, Optional[Finding]],
    size: int = 2,
    **header: Any,
) -> List[Finding]:
    """Return the findings about ranks; an end of None is a missing last line."""
    traces.write(folder, size, 7, lines=lambda rank: events.get(rank, []), **header)
    for rank in range(size):
        file = folder / f"rank-{rank:05d}.jsonl"
        lines = file.read_text().splitlines()[:-1]
        end: Dict[str, Any] = {"kind": "end", "time": 1.7e9 + 10, "how": "ended"}
        found = ends.get(rank)
        if found is not None:
            end.update(how=f"failed: {found.where.partition('failed: ')[2]}", finding=found.data())
        last = [] if rank in ends and found is None else [json.dumps(end)]
        file.write_text("\n".join([*lines, *last]) + "\n")
    return [each for each in findings.findings(summary.load(folder)) if each.kind not in OTHERS]


def test_a_failure_has_names_cause_and_fix(tmp_path: Path) -> None:
    said = {rank: [event(DIAGNOSIS, 1.7e9, "diagnosis"), event(FAILED, 1.7e9 + 2)] for rank in (0, 1)}
    found = run(tmp_path / "run", said, {0: endings.failed([0], None, ERROR), 1: endings.failed([1], None, ERROR)})
    # The explanation once, with what can be pasted.
    assert found == [FAILED._replace(cause=""), DIAGNOSIS, endings.likewise([0])]
    source = Page(page.make([{**summary.load(tmp_path / "run")}], ""))
    assert [element.text for element in source.named("pre")] == ["rare (all 2 parameters)", CODE.strip()]


def test_an_error_that_the_program_catches_is_explained_too(tmp_path: Path) -> None:
    assert run(tmp_path / "run", {0: 2 * [event(DIAGNOSIS, 1.7e9, "diagnosis")]}, {}) == [DIAGNOSIS]
    (told,) = summary.load(tmp_path / "run")["events"]
    assert (told["times"], told["ranks"]) == (2, [0])


LOST = endings.Lost(1, "process 7 on x", 7, 0, 8)
KILLED = endings.killed(LOST, "It was ended by SIGKILL", "")


def test_a_rank_that_was_killed_comes_before_what_follows_from_it(tmp_path: Path) -> None:
    lines = [event(KILLED, 1.7e9), event(endings.above(KILLED), 1.7e9)]
    first, second = run(tmp_path / "run", {0: lines, 2: lines}, {0: None, 1: None, 2: None}, size=3)
    assert first == KILLED
    assert second.level != BAD and second.where.startswith("ranks 0 and 2 have no exit record")


def test_the_batch_of_a_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    begun = [{"kind": "begin", "time": 1.7e9, "step": 8, "shape": [64, 9]}]
    found = run(tmp_path / "run", {0: [event(KILLED, 1.7e9)], 1: begun}, {1: None})
    assert found[0] == KILLED and found[1].where == (
        "rank 1 was killed in step 8 with a batch of 64 \u00d7 9 (no exit record)"
    )
    assert "memory" in found[1].advice


def test_ranks_that_end_because_of_another_one_are_no_cause(tmp_path: Path) -> None:
    peers = "PeerFailedError: ddpfix: rank 1 failed: KeyError: 'text' (this rank ends because of it)"
    gone = "RuntimeError: [x.cc:1] Connection closed by peer [127.0.0.1]:5 (train.py:3)"
    own = endings.failed([1], None, "KeyError: 'text' (data.py:7)")
    ends: Dict[int, Optional[Finding]] = {1: own}
    ends.update({rank: endings.failed([rank], None, text, follows=True) for rank, text in ((0, peers), (2, gone))})
    cause, others = run(tmp_path / "run", {}, ends, size=3)
    assert cause == own and others == endings.consequence([0, 2]) and others.level != BAD
    # Where nothing else is known, it is told.
    (found,) = run(tmp_path / "alone", {}, {0: ends[2]}, size=1)
    assert found.where == f"rank 0 failed: {gone}"


HANG = Finding(sentences.MISMATCH, [1], "rank 1 waits in gather;\nrank 0 waits in barrier", advice="The calls differ")


def test_ranks_that_waited_are_found_and_whoever_ended_them_is_no_cause(tmp_path: Path) -> None:
    """A job that hangs is ended by a person or a scheduler: nobody is told to look for missing memory."""
    after = [event(HANG, 1.7e9 + 60), event(KILLED, 1.7e9 + 90)]
    for lines in (after[:1], after):
        assert run(tmp_path / str(len(lines)), {0: lines}, {0: None, 1: None}) == [HANG]


def test_a_job_that_went_on_after_a_hang_was_killed_all_the_same(tmp_path: Path) -> None:
    found = run(tmp_path / "run", {0: [event(HANG, 1.7e9), event(KILLED, 1.7e9 + 90)]}, {1: None})
    assert found == [KILLED, HANG]


def test_a_process_that_has_exited_without_an_end_was_killed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (found,) = run(tmp_path / "run", {}, {0: None}, size=1, pid=child.pid, host=socket.gethostname())
    assert (
        found.where == "rank 0 was killed after step 7, the last in the trace (no exit record)"
        and "memory" in found.advice
    )
    (found,) = run(tmp_path / "there", {}, {0: None}, size=1, pid=child.pid, host="elsewhere")
    assert found.where.startswith("rank 0 has no exit record: killed or still running after step 7")


def test_a_killed_run_names_the_step_under_way_and_is_not_ok(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    begun: List[Dict[str, Any]] = [
        {"kind": "begin", "time": 1.7e9, "step": step, "shape": [64, 1_600_000]} for step in (3, 8)
    ]
    here: Dict[str, Any] = {"pid": child.pid, "host": socket.gethostname()}
    (found,) = run(tmp_path / "run", {1: begun}, {0: None, 1: None}, **here)
    assert found.where == "ranks 0 and 1 were killed in step 8 with a batch of 64 \u00d7 1600000 (no exit record)"
    everything = findings.findings(summary.load(tmp_path / "run"))
    (memory,) = [each for each in everything if each.kind == "memory"]
    assert memory.level != GOOD and memory.where.endswith("The trace has no row of a later step.")
    # A step that has a row as well, or a line at its end, is not the one.
    ended = [*begun, {"kind": "begin", "time": 1.7e9, "step": 9}]
    for lines, step in ((begun[:1], 7), (ended, 8)):
        (found,) = run(tmp_path / str(step), {1: lines}, {1: None}, **here)
        assert found.where == f"rank 1 was killed after step {step}, the last in the trace (no exit record)"


def test_the_batch_behind_the_largest_rise_of_memory_is_named() -> None:
    def record(step: int, mib: int, *shape: int) -> Dict[str, Any]:
        return {"bytes": mib << 20, "step": step, "rank": 1, "shape": list(shape)}

    memory = {
        "of": "cpu",
        "growth": None,
        "records": [record(1, 500, 8, 300), record(9, 617, 8, 9000), record(40, 619, 8, 310)],
    }
    (found,) = findings._memory({"memory": memory})
    assert found.where == (
        "Process memory rose from 500.0 MiB in step 1 to 619.0 MiB in step 40. Largest rise: 117.0 MiB in step 9 on"
        " rank 1 (largest batch 8 × 9000)."
    )
