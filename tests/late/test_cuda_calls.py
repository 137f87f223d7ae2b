"""No call of torch.cuda from a thread of ddpfix, but the question whether it is in use.

Any other one can open a context of half a gigabyte on GPU 0 in each rank, and breaks a graph that the program captures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List

import pytest

from tests.support import ranks

pytestmark = pytest.mark.patches("torch.divergence", "torch.hang", "torch.trace")
SCRIPT = str(Path(__file__).with_name("cuda_calls.py"))
# Neither opens a context.
QUESTIONS = {"is_initialized", "is_current_stream_capturing"}


def noted(folder: Path, *words: str) -> List[Dict[str, List[str]]]:
    environ = {"DDPFIX_TRACE": str(folder / "trace"), "DDPFIX_HANG": "2", "DDPFIX_DIVERGENCE": "4"}
    code, output = ranks.run([*ranks.elastic(2), SCRIPT, *words], ranks.environment(environ), folder, 120)
    assert code == 0, output
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(found) == 2, output
    return found


def test_threads_of_ddpfix_ask_whether_it_is_in_use_and_nothing_else(tmp_path: Path) -> None:
    for found in noted(tmp_path):
        assert set(found["ours"]) == {"is_initialized"}
        assert set(found["programs"]) <= QUESTIONS, found


def test_a_call_from_such_a_thread_is_seen(tmp_path: Path) -> None:
    assert all("synchronize" in found["ours"] for found in noted(tmp_path, "asks"))
