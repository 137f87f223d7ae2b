"""Faults strike runs on real ranks: equal and right replicas, or all ranks ended with the cause."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import judge, launch, programs, results
from tests.faults.judge import ENDED, HUNG, SURVIVED, Outcome
from tests.faults.plan import KINDS, draw
from tests.support import ranks

# Seeds of disks that are full, and of other faults; their runs end as the committed ones did.
DISKS = (7, 8, 9)
SAMPLE = (1, 2, 6, 10, 12, 13, 14, 21, 31, 32, *DISKS)
COMMITTED = {each.seed: each.end for each in results.read()}


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_sample(tmp_path: Path, seed: int) -> None:
    """By the command."""
    if seed in DISKS and not launch.can_mount():
        pytest.skip("no small disk can be mounted here")
    file = tmp_path / "found.json"
    words = ["-m", "tests.faults", "--seed", str(seed), "--runs", "1", "--resume", str(file)]
    code, text = ranks.run([sys.executable, *words], ranks.environment({"TMPDIR": str(tmp_path)}), ranks.ROOT, 240)
    assert file.exists() and code == 0, text
    (found,) = results.read(file)
    assert (found.end, found.faults) == (COMMITTED[seed], []), found
    if found.kind in ("forward", "hook"):
        assert {"every rank", "torch elastic's summary"} <= set(found.told), found


ONLY_NUMBERS = """
import dataclasses, sys
from pathlib import Path
from tests.faults import judge, programs
from tests.faults.plan import STEPS, draw

plan = draw(0, "forward")
folder = Path(sys.argv[1])
right = programs.reference(plan.program, plan.seed, plan.size, STEPS)
for rank in range(plan.size):
    rows = [row.clone() for row in right]
    if rank == 1 and sys.argv[2] != "right":
        rows[5][0] += float(sys.argv[2])
    (folder / f"rank-{rank}.rows").write_bytes(b"".join(row.numpy().tobytes() for row in rows))
print(*judge.outcome(plan, folder, 0, 1.0).faults, sep=";")
"""


@pytest.mark.sampled(inside=False, cells=True)
def test_the_judge_sees_a_difference(tmp_path: Path) -> None:
    """Of one parameter on one rank; a difference that rounding makes is one between replicas all the same."""
    told = []
    for words in ("right", "0.001", "1e-14"):
        command = [sys.executable, "-c", ONLY_NUMBERS, str(tmp_path), words]
        done = subprocess.run(command, env=ranks.environment(), capture_output=True, text=True, timeout=120)
        told.append(done.stdout.strip())
        assert done.returncode == 0, done.stderr
    assert told == [
        "",
        "rank 1 is not right from step 5 on;replicas differ after step 5",
        "replicas differ after step 5",
    ]


def test_a_damaged_file_and_a_cause_that_is_not_named_are_seen(tmp_path: Path) -> None:
    plan = draw(0, "forward")
    (tmp_path / "checkpoint.pt").write_bytes(b"PK")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "error.json").write_text("")
    faults = " ".join(judge.outcome(plan, tmp_path, 1, 1.0).faults)
    assert "the checkpoint is damaged" in faults and "an error file is damaged" in faults
    assert "the cause is not named" in faults and "its summary" in faults
    assert "it was not over at the limit" in judge.outcome(plan, tmp_path, None, 1.0).faults


def test_what_plain_torch_survives_must_be_survived() -> None:
    """A store that is gone before the model is wrapped is the exception, and docs/limitations.md says so."""
    found = Outcome(0, "slow store", "0.1", "plain", 2, ENDED, 1.0, [], [])
    assert judge.needs_plain(found)
    assert judge.beside(found, found._replace(end=SURVIVED)).faults == ["it survives without ddpfix"]
    assert judge.beside(found, found).faults == []


def test_the_committed_results_are_of_these_runs_and_none_is_against_the_rules() -> None:
    found = results.read()
    assert sorted(each.seed for each in found) == list(range(300))
    assert {(each.kind, each.how) for each in found} == {(kind, how) for kind, hows in KINDS.items() for how in hows}
    for each in found:
        plan = draw(each.seed)
        assert (plan.kind, plan.how, plan.program, plan.size) == (each.kind, each.how, each.program, each.size)
        assert each.faults == [], each
        assert each.end in (SURVIVED, ENDED) or each.plain == HUNG, each
    assert json.loads(results.FILE.read_text())["runs"]
    assert programs.accumulated("plain") == 1
