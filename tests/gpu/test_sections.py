"""The checks of ``python -m tests.gpu`` fail where something is wrong, its counts count, and names are right."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import launch, pretend, syncs  # noqa: E402
from tests.gpu.catalogue import everything  # noqa: E402
from tests.gpu.cells import GROUPS, Cell, lacking, launches  # noqa: E402
from tests.gpu.launch import Outcome  # noqa: E402
from tests.gpu.sections import most, verdict  # noqa: E402

EXACT = Cell("exactness", "gloo2", "exact", "tiny wav2vec2", "late", "", {"steps": 2})
MACHINE: Dict[str, Any] = {
    **dict.fromkeys(("cuda", "nccl_there", "bf16"), True),
    **dict.fromkeys(("driver", "cuda_version", "nccl", "torch", "python", "transformers", "funasr", "triton"), "9.0"),
    "devices": 2,
    "device": "a card",
    "memory": 80_000,
}


def ranks(**changes: Any) -> List[Dict[str, Any]]:
    """What two ranks find where all is well, but for changes of the second one."""
    good: Dict[str, Any] = {"steps": ["a", "b"], "ran": [[["layers.0"]], [[]]], "gradient": 0.0, "parameters": 0.0}
    good.update(same=2, known=True, finite=True, unused=3, flag=False, scales=[1.0, 1.0])
    return [good, {**good, **changes}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "ok"),
        ({"steps": ["a", "c"]}, "FAILED: ranks have different parameters"),
        ({"ran": [[[]], [[]]]}, "FAILED: ranks skip different layers"),
        ({"gradient": 1e-3}, "FAILED: gradients"),
        ({"gradient": float("nan")}, "FAILED: gradients"),
        ({"same": 1, "parameters": 1e-9}, "FAILED: parameters apart by 1.0e-09"),
        ({"finite": False}, "FAILED: not finite"),
        ({"known": False}, "FAILED: ddpfix names other layers"),
        ({"scales": [1.0, 0.5]}, "FAILED: the scale"),
    ],
)
def test_what_is_wrong_is_named(changes: Dict[str, Any], said: str) -> None:
    outcome = Outcome(EXACT, ranks(**changes))
    assert verdict(outcome, []) == said


@pytest.mark.parametrize("numbers", [[0.0, float("nan")], [float("nan"), 0.0], [1.0, float("nan"), 2.0]])
def test_what_is_no_number_is_the_largest(numbers: List[float]) -> None:
    assert math.isnan(most(numbers))


def event(name: str, start: float, device: Any = None) -> Any:
    kind = torch.autograd.DeviceType.CPU if device is None else device
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=start + 10), device_type=kind)


def test_waits_are_counted_within_the_window() -> None:
    cuda = torch.autograd.DeviceType.CUDA
    events = [event(syncs._WINDOW, 0, cuda), event(syncs._WINDOW, 100)]
    events += [event("cudaStreamSynchronize", 105), event("cudaLaunchKernel", 106), event(syncs.ITEM, 107)]
    # The profiler's own comes after the window; copies on the card may come late.
    events += [event("cudaDeviceSynchronize", 150), event("Memcpy DtoH (Device -> Pageable)", 150, cuda)]
    events += [event("Memcpy DtoH (Device -> Pinned)", 104, cuda)]
    expected = {"waits": 1, "copies": 1, "items": 1, "launches": 1, "gloo": 0, "cudaStreamSynchronize": 1}
    assert syncs.counted(events) == expected


def waited(mode: str, waits: float, look: Tuple[float, float] = (0.0, 0.0), gloo: float = 0.0) -> Outcome:
    """Two ranks, of which the second one waits ``waits`` times a step; in a look it waits and copies."""
    cell = Cell("syncs", "nccl1", "syncs", "BART-base", mode, "rate 0")
    found = []
    for number in (1.0, waits):
        counts = {"waits": number, "copies": 0.0, "items": 0.0, "launches": 9.0, "gloo": gloo}
        looked = {**counts, "waits": number + look[0], "copies": look[1]}
        found.append({"counts": counts, "look": looked, "warned": 0.0, "flag": False, "cuda": True})
    return Outcome(cell, found)


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (waited("late", 1.0), "ok"),
        (waited("late", 2.0), "FAILED: waits 2 instead of 1"),
        # Waits of gloo's own threads do not count.
        (waited("late", 2.0, gloo=1.0), "ok"),
        # A look may copy twice.
        (waited("late", 1.0, (2.0, 2.0)), "ok"),
        (waited("late", 1.0, (2.0, 3.0)), "FAILED: in a look: copies 3 instead of 0"),
        (replace(waited("late", 1.0), left_out="no time was left"), "left out"),
    ],
)
def test_late_may_add_no_wait(late: Outcome, said: str) -> None:
    assert verdict(late, [waited("plain", 1.0)]) == said
    if late.found and not late.left_out:
        late.cell = replace(late.cell, group="gloo2")
        assert "there is nothing to compare it with" in verdict(late, [waited("plain", 1.0)])


def looped(mode: str, **changes: Any) -> Outcome:
    cell = Cell("loops", "gloo2", "loops", "", mode, "GAN", {"steps": 2, "base": "plain"})
    good: Dict[str, Any] = {"steps": ["a", "b"], "finite": True, "counts": {}, "said": "", "wrong": []}
    return Outcome(cell, [{**good, **changes}, {**good, **changes}])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": ["a", "c"]}, "trained otherwise than plain"),
        ({"finite": False}, "not finite"),
        ({"wrong": ["it lies"]}, "it lies"),
        ({"counts": {"waits": 3.0, "copies": 0.0}}, "waits 3 instead of 1"),
    ],
)
def test_a_program_is_trained_as_by_torch(changes: Dict[str, Any], said: str) -> None:
    plain = looped("plain", counts={"waits": 1.0, "copies": 0.0})
    assert verdict(plain, [plain]) == "ok"
    assert verdict(looped("late"), [plain]) == "ok"
    assert verdict(looped("late", **changes), [plain]) == f"FAILED: {said}"
    assert verdict(looped("late"), []) == "FAILED: there is nothing to compare it with"


def test_one_card_is_not_two() -> None:
    one = {**MACHINE, "devices": 1}
    reasons = {lacking(cell, one) for cell in everything(one, False) if cell.group == "nccl2"}
    assert reasons == {"needs two cards"}
    small = {
        lacking(cell, {**MACHINE, "memory": 16_000}) for cell in everything(MACHINE, False) if cell.section == "table"
    }
    assert small == {"needs a card with 32 GB"}
    assert not any(lacking(cell, MACHINE) for cell in everything(MACHINE, False))


def test_results_are_kept_for_the_same_machine_and_ddpfix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    first = launch.Kept(file, MACHINE)
    first.add([Outcome(EXACT, ranks(), seconds=3.0), Outcome(replace(EXACT, mode="find"), left_out="no time was left")])
    again = launch.Kept(file, MACHINE)
    found = again.of(replace(EXACT, limit=1.0))
    assert found is not None and found.found == ranks() and found.seconds == 3.0
    assert again.of(replace(EXACT, mode="find")) is None
    assert launch.Kept(file, {**MACHINE, "device": "another card"}).of(EXACT) is None
    monkeypatch.setattr(launch, "source", lambda: "another")
    assert launch.Kept(file, MACHINE).of(EXACT) is None


@pytest.mark.parametrize("quick", [False, True])
def test_every_cell_is_in_one_launch_of_its_group(quick: bool) -> None:
    cells = everything(MACHINE, quick)
    possible = [cell for cell in cells if not lacking(cell, MACHINE)]
    planned = [cell for _, own in launches(possible, True) for cell in own]
    assert sorted(map(repr, planned)) == sorted(map(repr, possible)) and len(set(map(repr, cells))) == len(cells)
    assert all(len({cell.group for cell in own}) == 1 for _, own in launches(possible, True))
    assert {GROUPS[cell.group][0] for cell in planned} == {"nccl", "gloo"}


@pytest.mark.sampled(inside=False)
def test_a_cell_that_fails_takes_no_other_away() -> None:
    """An act that is not there fails on all ranks."""
    small = {"steps": 1, "optimizer": "sgd"}
    cells = [Cell("exactness", "gloo2", act, "branches", "flag", "", small) for act in ("nothing", "exact")]
    first, second = launch.run(cells, False, 60.0)
    assert "ModuleNotFoundError" in first.error and not second.error and len(second.found) == 2


@pytest.mark.sampled(inside=False)
@pytest.mark.parametrize("act", ["programs", "hangs", "look", "traced"])
def test_lines_for_a_card_run(act: str) -> None:
    words = [sys.executable, "-m", "tests.gpu.pretend", act]
    ran = subprocess.run(words, env=launch.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: List[Dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["error"] for each in found] == [None] * len(pretend.cells(act)) and found
    if act == "programs":
        # Counted by the profiler, as on a card.
        assert all(each["found"]["counts"]["waits"] == 0 and each["found"]["wrong"] == [] for each in found)
