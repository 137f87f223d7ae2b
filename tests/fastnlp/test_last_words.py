"""What stands last on the screen when a rank fails: where fastNLP, and where torchrun, started the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import JOB, Scenario

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="DistTrainer ends no other process"),
]
CAUSE = "ValueError: bad sample"
FAILING: Dict[str, Any] = {"rank": 1, "where": "train"}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(JOB))
# Rank 1 fails where fastNLP does not notice, and rank 0 waits for it.
OUTSIDE = """
if os.environ["RANK"] == "1":
    raise ValueError("bad sample")
torch.distributed.barrier()
"""


def screens(folder: Path, words: Sequence[str] = (str(JOB),), code: Any = "not 0", **about: Any) -> List[str]:
    """What is on the screen, without ddpfix and with it."""
    found = []
    for name, environ in (("unpatched", None), ("ours", {"DDPFIX": "1"})):
        ended, screen, _ = launch.alone(Scenario(name, "whole", **about), folder, words, environ)
        assert ended == code if isinstance(code, int) else ended != 0
        found.append(screen)
    return found


@pytest.mark.patches("fastnlp.cause")
def test_the_cause_on_a_quiet_rank_is_printed(tmp_path: Path) -> None:
    quiet = {"output_from_new_proc": "ignore"}
    unpatched, ours = screens(tmp_path, code=-9, kwargs=quiet, fail=FAILING)
    assert CAUSE not in unpatched
    assert "ddpfix: rank 1 failed first and ends the other ranks" in ours
    assert CAUSE in ours.rstrip().splitlines()[-1]


@pytest.mark.patches("fastnlp.cause")
def test_torchrun_names_the_rank_that_failed(tmp_path: Path) -> None:
    root = "Root Cause (first observed failure):"
    unpatched, ours = (screen.split(root)[1] for screen in screens(tmp_path, TORCHRUN, fail=FAILING))
    assert CAUSE not in unpatched
    assert "rank      : 1 " in ours
    assert CAUSE in ours


@pytest.mark.patches("torch.failures")
def test_a_failure_outside_of_a_run_is_read_last(tmp_path: Path) -> None:
    unpatched, ours = screens(tmp_path, after=OUTSIDE)
    assert unpatched.rstrip().splitlines()[-1].startswith("[rank0]: RuntimeError: ")
    assert f"ddpfix: rank 1 failed in step 4: {CAUSE} (job.py:" in ours
    assert ours.rstrip().splitlines()[-1].startswith("ddpfix: this rank ends because rank 1 failed in step 4")
