"""What stands last on the screen when a rank fails: where fastNLP, and where torchrun, started the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import JOB, Scenario

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="DistTrainer ends no other process"),
]
ON = {"DDPFIX": "1"}
CAUSE = "ValueError: bad sample"
FAILING: Dict[str, Any] = {"rank": 1, "where": "train"}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(JOB))
# Rank 1 fails where fastNLP does not notice, and rank 0 waits for it.
OUTSIDE = """
if os.environ["RANK"] == "1":
    raise ValueError("bad sample")
torch.distributed.barrier()
"""


@pytest.mark.patches("fastnlp.cause")
def test_the_cause_on_a_quiet_rank_is_printed(tmp_path: Path) -> None:
    quiet = {"output_from_new_proc": "ignore"}
    code, screen, _ = launch.alone(Scenario("unpatched", "whole", quiet, FAILING), tmp_path)
    assert code == -9
    assert CAUSE not in screen
    code, screen, _ = launch.alone(Scenario("ours", "whole", quiet, FAILING), tmp_path, environ=ON)
    assert code == -9
    assert "ddpfix: rank 1 failed first and ends the other ranks" in screen
    assert CAUSE in screen.rstrip().splitlines()[-1]


@pytest.mark.patches("fastnlp.cause")
def test_torchrun_names_the_rank_that_failed(tmp_path: Path) -> None:
    root = "Root Cause (first observed failure):"
    code, screen, _ = launch.alone(Scenario("unpatched", "whole", fail=FAILING), tmp_path, TORCHRUN)
    assert code != 0
    assert CAUSE not in screen.split(root)[1]
    code, screen, _ = launch.alone(Scenario("ours", "whole", fail=FAILING), tmp_path, TORCHRUN, ON)
    assert code != 0
    last = screen.split(root)[1]
    assert "rank      : 1 " in last
    assert CAUSE in last


@pytest.mark.patches("torch.failures")
def test_a_failure_outside_of_a_run_is_read_last(tmp_path: Path) -> None:
    code, screen, _ = launch.alone(Scenario("unpatched", "whole", after=OUTSIDE), tmp_path)
    assert code != 0
    assert screen.rstrip().splitlines()[-1].startswith("[rank0]: RuntimeError: ")
    code, screen, _ = launch.alone(Scenario("ours", "whole", after=OUTSIDE), tmp_path, environ=ON)
    assert code != 0
    assert f"ddpfix: rank 1 failed in step 4: {CAUSE} (job.py:" in screen
    assert screen.rstrip().splitlines()[-1].startswith("ddpfix: this rank ends because rank 1 failed in step 4")
