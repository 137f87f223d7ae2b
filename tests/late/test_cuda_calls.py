"""No call of torch.cuda from a thread of ddpfix, but the question whether it is in use.

Any other one can open a context of half a gigabyte on GPU 0 in each rank, and breaks a graph that the program captures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.late import launch
from tests.late.launch import Scenario, steps

pytestmark = pytest.mark.patches("torch.divergence", "torch.hang", "torch.trace")
# Neither opens a context.
QUESTIONS = {"is_initialized", "is_current_stream_capturing"}


def test_threads_of_ddpfix_ask_whether_it_is_in_use_and_nothing_else(tmp_path: Path) -> None:
    settings = {"trace": str(tmp_path / "trace"), "hang": "2", "divergence": "4"}
    plans = [Scenario(name, function=f"cuda_calls:{name}", settings=settings) for name in ("train", "asked")]
    found = launch.train(plans, tmp_path)
    assert steps(found["train"], "ours") == [["is_initialized"]] * 2
    assert all(set(names) <= QUESTIONS for names in steps(found["train"], "programs")), found
    # A call from such a thread is seen.
    assert all("synchronize" in names for names in steps(found["asked"], "ours"))
