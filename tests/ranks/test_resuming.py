"""A job that is interrupted and goes on takes the decisions of one that is not, if it restores its random states.

The unpatched toolkit is the reference for what a program may expect: with the flag its resumed job ends with the same
bits as the uninterrupted one, and ranks skip different layers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import pytest
import transformers
from packaging.version import Version

from tests.ranks.launch import served
from tests.ranks.resuming import SAVED

STEPS = 8
PART = "part_of_a_job"
# Trainer runs under nox -s rest.
KINDS = ["loop", pytest.param("trainer", marks=pytest.mark.sampled(inside=False, cells=True))]
Job = List[Dict[str, Any]]


def job(folder: Path, kind: str, begin: int, environ: Mapping[str, str]) -> Job:
    """What each rank found in a job from step ``begin`` on; the one from 0 leaves the checkpoint of the others."""
    part = json.dumps([kind, str(folder), begin, STEPS])
    records = served([PART], environ["DDPFIX"] == "1", {**environ, "TEST_PART": part}).records(PART)
    assert not any("failed" in record for record in records), records
    return records


def uninterrupted(folder: Path, kind: str, switch: str) -> Tuple[Job, Dict[str, str]]:
    """A whole job with ddpfix on or off, and the environment of one that goes on: its own seed is another one."""
    return job(folder, kind, 0, {"DDPFIX": switch}), {"DDPFIX": switch, "TEST_SEED": "7"}


def check_goes_on(whole: Job, rest: Job) -> None:
    for uninterrupted, resumed in zip(whole, rest):
        assert resumed["skipped"] == uninterrupted["skipped"][SAVED:]
        assert resumed["digest"] == uninterrupted["digest"]
        assert resumed["drawn"] == uninterrupted["drawn"]


def patterns(job: Job) -> int:
    return len({tuple(step) for step in job[0]["skipped"]})


@pytest.mark.parametrize("kind", KINDS)
def test_unpatched_ranks_skip_differently_and_go_on(tmp_path: Path, kind: str) -> None:
    whole, environ = uninterrupted(tmp_path, kind, "0")
    # Up to 4.30 the draws are numpy's, which dropout does not touch: Trainer's equal seeds keep them equal.
    alike = kind == "trainer" and Version("4.31") > Version(transformers.__version__)
    assert alike or whole[0]["skipped"] != whole[1]["skipped"]
    check_goes_on(whole, job(tmp_path, kind, SAVED, environ))


@pytest.mark.patches("torch.steps")
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_job_goes_on(tmp_path: Path, kind: str) -> None:
    whole, environ = uninterrupted(tmp_path, kind, "1")
    assert whole[0]["skipped"] == whole[1]["skipped"] and patterns(whole) > 2
    rest = job(tmp_path, kind, SAVED, environ)
    check_goes_on(whole, rest)
    # The steps before were others, so a sequence that had begun anew would have shown.
    assert whole[0]["skipped"][:SAVED] != rest[0]["skipped"]


@pytest.mark.patches("torch.steps")
@pytest.mark.sampled(inside=False, cells=True)
def test_what_a_job_restores_decides(tmp_path: Path) -> None:
    """The seed of the first rank, and the steps that its optimizer has counted; a new seed begins another sequence."""
    whole, environ = uninterrupted(tmp_path, "loop", "1")
    first = job(tmp_path, "loop", SAVED, {**environ, "TEST_FORGETS": "1"})
    assert first[0]["skipped"] == whole[0]["skipped"][SAVED:] and first[0]["skipped"] == first[1]["skipped"]
    anew = job(tmp_path, "loop", SAVED, {"DDPFIX": "1", "TEST_FORGETS": "0,1"})
    assert anew[0]["skipped"] == anew[1]["skipped"] == whole[0]["skipped"][SAVED:]
    seeded = job(tmp_path, "loop", SAVED, {**environ, "DDPFIX_SEED": "5"})
    assert seeded[0]["skipped"] == seeded[1]["skipped"] != whole[0]["skipped"][SAVED:]


@pytest.mark.patches("torch.steps")
@pytest.mark.sampled(inside=False, cells=True)
def test_a_checkpoint_goes_with_and_without_ddpfix(tmp_path: Path) -> None:
    """A state that was saved under ddpfix is the same to torch without it, and the other way round."""
    whole, environ = uninterrupted(tmp_path, "loop", "1")
    ranks_alone = job(tmp_path, "loop", SAVED, {**environ, "DDPFIX": "0"})
    assert ranks_alone[0]["skipped"] != ranks_alone[1]["skipped"]
    unpatched, environ = uninterrupted(tmp_path, "loop", "0")
    together = job(tmp_path, "loop", SAVED, {**environ, "DDPFIX": "1"})
    assert together[0]["skipped"] == together[1]["skipped"]
    # Reproducible, from the restored state and not from the job's own seed.
    again = job(tmp_path, "loop", SAVED, {**environ, "DDPFIX": "1", "TEST_SEED": "8"})
    assert again == together
