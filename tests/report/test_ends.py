"""What the report says of ranks that failed, were killed or stood still: the cause first, with names and the fix."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from ddpfix.cli.report import findings, page, summary
from ddpfix.cli.report.words import BAD, GOOD, Finding
from ddpfix.monitor import hang as monitor
from ddpfix.monitor import sentinel
from tests.support import traces
from tests.support.pages import Page

ERROR = "RuntimeError: Expected to have finished reduction in the prior iteration. (train.py:12)"
DIAGNOSIS = (
    "2 parameters got no gradient on rank {rank} in step 7, the same on all ranks:\n    rare (all 2 parameters)\n"
    "ddpfix: cause: rare was not called in this step\n"
    "ddpfix: cure: paste this line (without an edit: DDPFIX_UNUSED=late):\n"
    "    DistributedDataParallel(model, find_unused_parameters=True)"
)


def event(level: str, text: str, time: float) -> Dict[str, Any]:
    return {"kind": "event", "level": level, "text": text, "time": time, "step": 7}


def run(
    folder: Path, events: Dict[int, List[Dict[str, Any]]], ends: Dict[int, Optional[str]], size: int = 2, **header: Any
) -> List[Finding]:
    """Return the findings about ranks; an end of None is a missing last line."""
    traces.write(folder, size, 7, lines=lambda rank: events.get(rank, []), **header)
    for rank in range(size):
        file = folder / f"rank-{rank:05d}.jsonl"
        lines = file.read_text().splitlines()[:-1]
        how = ends.get(rank, "ended")
        last = [] if how is None else [json.dumps({"kind": "end", "time": 1.7e9 + 10, "how": how})]
        file.write_text("\n".join([*lines, *last]) + "\n")
    return [each for each in findings.findings(summary.load(folder)) if each.subject == "ranks"]


def test_a_failure_has_names_cause_and_fix(tmp_path: Path) -> None:
    said = {
        rank: [
            event("diagnosis", DIAGNOSIS.format(rank=rank), 1.7e9 + rank),
            event("error", f"rank 1 failed in step 8: {ERROR}", 1.7e9 + 2),
        ]
        for rank in (0, 1)
    }
    (found,) = run(tmp_path / "run", said, {0: f"failed: {ERROR}", 1: f"failed: {ERROR}"})
    assert found.level == BAD
    assert found.text == (
        "Ranks 0 and 1 failed in step 8: 2 parameters got no gradient on rank 0 in step 7, the same on all ranks:"
        " rare (all 2 parameters)"
    )
    assert found.lines == [
        "cause: rare was not called in this step",
        "fix: paste this line (without an edit: DDPFIX_UNUSED=late):\n"
        "DistributedDataParallel(model, find_unused_parameters=True)",
        f"the error: {ERROR}",
    ]
    source = Page(page.make([{**summary.load(tmp_path / "run")}], ""))
    assert [element.text for element in source.named("pre")] == [
        "DistributedDataParallel(model, find_unused_parameters=True)"
    ]


def test_an_error_that_the_program_catches_is_explained_too(tmp_path: Path) -> None:
    (found,) = run(tmp_path / "run", {0: [event("diagnosis", DIAGNOSIS.format(rank=0), 1.7e9)]}, {})
    assert found.text.startswith("Error on rank 0: 2 parameters got no gradient") and len(found.lines) == 2


def test_a_rank_that_was_killed_comes_before_what_follows_from_it(tmp_path: Path) -> None:
    said = "rank 1 ended without a word, last seen in step 7: process 7 on x has exited. It was ended by SIGKILL"
    lines = [event("error", said, 1.7e9), event("error", "this rank ends because rank 1 ended (above)", 1.7e9)]
    first, second = run(tmp_path / "run", {0: lines, 2: lines}, {0: None, 1: None, 2: None}, size=3)
    assert first.level == BAD and first.text == f"{said[0].upper()}{said[1:]} (reported by ranks 0 and 2)."
    assert "memory" in first.lines[0]
    assert second.level != BAD and second.text.startswith("Ranks 0 and 2 have no exit record")


def test_ranks_that_end_because_of_another_one_are_no_cause(tmp_path: Path) -> None:
    ends = {
        0: "failed: PeerFailedError: ddpfix: rank 1 failed: KeyError: 'text' (this rank ends because of it)",
        1: "failed: KeyError: 'text' (data.py:7)",
        2: "failed: RuntimeError: [x.cc:1] Connection closed by peer [127.0.0.1]:5 (train.py:3)",
    }
    cause, others = run(tmp_path / "run", {}, dict(ends), size=3)
    assert (cause.level, cause.text) == (BAD, "Rank 1 failed: KeyError: 'text' (data.py:7)")
    assert others.level != BAD and others.text == "Ranks 0 and 2 failed as a consequence."


HANG = "ranks wait: rank 1 is in all_reduce, rank 0 in barrier. The job goes on waiting"
KILLED = "rank 1 ended without a word, last seen in step 7: process 7 on x has exited. It was ended by SIGKILL"


def test_ranks_that_waited_are_found_and_whoever_ended_them_is_no_cause(tmp_path: Path) -> None:
    """A job that hangs is ended by a person or a scheduler: nobody is told to look for missing memory."""
    after = [event("error", HANG, 1.7e9 + 60), event("error", KILLED, 1.7e9 + 90)]
    for lines in (after[:1], after):
        found = run(tmp_path / str(len(lines)), {0: lines}, {0: None, 1: None})
        assert [(each.text, each.lines) for each in found] == [(f"R{HANG[1:]}", ())]
    assert HANG[:12] in Path(monitor.__file__).read_text()
    assert KILLED[7:27] in Path(sentinel.__file__).read_text()


def test_a_job_that_went_on_after_a_hang_was_killed_all_the_same(tmp_path: Path) -> None:
    found = run(tmp_path / "run", {0: [event("error", HANG, 1.7e9), event("error", KILLED, 1.7e9 + 90)]}, {1: None})
    assert [each.text[:27] for each in found] == ["Rank 1 ended without a word", "Ranks wait: rank 1 is in al"]
    assert "memory" in found[0].lines[0]


def test_a_process_that_has_exited_without_an_end_was_killed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (found,) = run(tmp_path / "run", {}, {0: None}, size=1, pid=child.pid, host=socket.gethostname())
    assert (
        found.text == "Rank 0 was killed after step 7, the last in the trace (no exit record)."
        and "memory" in found.lines[0]
    )
    (found,) = run(tmp_path / "there", {}, {0: None}, size=1, pid=child.pid, host="elsewhere")
    assert found.text.startswith("Rank 0 has no exit record: killed or still running after step 7")


def test_a_killed_run_names_the_step_under_way_and_is_not_ok(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    begun: List[Dict[str, Any]] = [
        {"kind": "begin", "time": 1.7e9, "step": step, "shape": [64, 1_600_000]} for step in (3, 8)
    ]
    here: Dict[str, Any] = {"pid": child.pid, "host": socket.gethostname()}
    (found,) = run(tmp_path / "run", {1: begun}, {0: None, 1: None}, **here)
    assert found.text == ("Ranks 0 and 1 were killed in step 8 with a batch of 64 \u00d7 1600000 (no exit record).")
    everything = findings.findings(summary.load(tmp_path / "run"))
    (memory,) = [each for each in everything if each.subject == "memory"]
    assert memory.level != GOOD and memory.text.endswith("The trace has no row of a later step.")
    # A step that has a row as well, or a line at its end, is not the one.
    ended = [*begun, {"kind": "begin", "time": 1.7e9, "step": 9}]
    for lines, step in ((begun[:1], 7), (ended, 8)):
        (found,) = run(tmp_path / str(step), {1: lines}, {1: None}, **here)
        assert found.text == f"Rank 1 was killed after step {step}, the last in the trace (no exit record)."


def test_the_batch_behind_the_largest_rise_of_memory_is_named() -> None:
    def record(step: int, mib: int, *shape: int) -> Dict[str, Any]:
        return {"bytes": mib << 20, "step": step, "rank": 1, "shape": list(shape), "padding": None}

    memory = {
        "of": "cpu",
        "growth": None,
        "records": [record(1, 500, 8, 300), record(9, 617, 8, 9000), record(40, 619, 8, 310)],
    }
    (found,) = findings._memory({"memory": memory})
    assert found.text == (
        "Process memory rose from 500.0 MiB in step 1 to 619.0 MiB in step 40. Largest rise: 117.0 MiB in step 9 on"
        " rank 1 (largest batch 8 × 9000)."
    )
