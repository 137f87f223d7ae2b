"""Lines that only a card runs: their names are right, and what they find is judged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import card, child, hangs, launch, pretend, world  # noqa: E402
from tests.gpu.hangs import Look  # noqa: E402


@pytest.mark.sampled(inside=False)
@pytest.mark.parametrize("act", ["loops", "streams", "graphs", "hangs", "look", "traced"])
def test_lines_for_a_card_run(act: str) -> None:
    words = [sys.executable, "-m", "tests.gpu.pretend", act]
    ran = subprocess.run(words, env=launch.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: List[Dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["error"] for each in found] == [None] * len(pretend.cells(act)) and found
    if act in ("loops", "streams", "graphs"):
        # Counted by the profiler, as on a card.
        assert all(each["found"]["counts"]["waits"] == 0 and each["found"]["wrong"] == [] for each in found)


def test_a_thread_that_stands_has_to_count_as_waiting() -> None:
    looks = [Look(1.0, False, "other"), Look(4.5, True, "device"), Look(5.0, True, "device")]
    assert hangs._judged(looks, 6.0)["wrong"] == []
    assert hangs._judged([*looks, Look(5.5, False, "forward")], 6.0)["wrong"] == ["no wait is seen: device, forward"]
    assert hangs._judged(looks[:1], 1.0)["wrong"] == ["the thread never stood for 4 s of 1.0"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("device_id", {"backend": "nccl", "device_id": torch.device("cuda", 1)}),
        ("cpu:gloo,cuda:nccl", {"backend": "cpu:gloo,cuda:nccl"}),
        ("backend None", {"backend": None}),
        ("no set_device", {"backend": "nccl"}),
        ("module over both cards", {"backend": "nccl"}),
    ],
)
def test_a_group_is_started_in_each_way(kind: str, expected: Dict[str, Any]) -> None:
    assert child.how(kind, torch.device("cuda", 1)) == expected


def test_the_card_sleeps_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles: List[int] = []
    monkeypatch.setattr(world, "_DEVICE", [torch.device("cuda", 0)])
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    times = iter([10.0, 10.05])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    card.Sleep()(6.0)
    assert cycles[:2] == [card._CYCLES] * 2 and cycles[2] == pytest.approx(6.0 * card._CYCLES / 0.05)
