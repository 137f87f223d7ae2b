"""The checks of ``python -m tests.gpu`` fail where something is wrong, and its counts count."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import __main__, judge, launch, report, syncs  # noqa: E402
from tests.gpu.cells import GROUPS, Cell, everything, lacking, launches  # noqa: E402
from tests.gpu.launch import Outcome  # noqa: E402

EXACT = Cell("exactness", "gloo2", "exact", "tiny wav2vec2", "late", "", {"steps": 2})
MACHINE: Dict[str, Any] = {
    **dict.fromkeys(("cuda", "compiler", "nccl_there", "bf16"), True),
    **dict.fromkeys(("driver", "cuda_version", "nccl", "torch", "python", "transformers", "funasr", "triton"), "9.0"),
    "devices": 2,
    "device": "a card",
    "memory": 1,
}


def ranks(**changes: Any) -> List[Dict[str, Any]]:
    """What two ranks find where all is well, but for changes of the second one."""
    good: Dict[str, Any] = {"steps": ["a", "b"], "ran": [[["layers.0"]], [[]]], "gradient": 0.0, "parameters": 0.0}
    good.update(same=2, known=True, finite=True, unused=3, flag=False, scales=[1.0, 1.0], traffic=[9, 1])
    return [good, {**good, **changes}]


def test_all_is_well() -> None:
    assert judge.verdict(Outcome(EXACT, ranks()), []) == "ok"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": ["a", "c"]}, "ranks have different parameters"),
        ({"ran": [[[]], [[]]]}, "ranks skip different layers"),
        ({"gradient": 1e-3}, "gradients"),
        ({"gradient": float("nan")}, "gradients"),
        ({"same": 1, "parameters": 1e-9}, "parameters apart by 1.0e-09"),
        ({"finite": False}, "not finite"),
        ({"known": False}, "ddpfix names other layers"),
        ({"scales": [1.0, 0.5]}, "the scale"),
    ],
)
def test_what_is_wrong_is_named(changes: Dict[str, Any], said: str) -> None:
    outcome = Outcome(EXACT, ranks(**changes))
    assert judge.verdict(outcome, []) == f"FAILED: {said}" and judge.failed([outcome]) == 1


def test_buckets_have_to_be_left_unsent() -> None:
    found = [{**one, "traffic": [9, 0]} for one in ranks()]
    assert judge.verdict(Outcome(EXACT, found), []) == "FAILED: every bucket was sent"
    assert judge.verdict(Outcome(replace(EXACT, mode="late, all sent"), found), []) == "ok"


def test_an_error_fails_and_what_is_left_out_does_not() -> None:
    outcomes = [Outcome(EXACT, error="it broke"), Outcome(EXACT, left_out="no time was left")]
    assert judge.failed(outcomes) == 1
    text = report.markdown(MACHINE, outcomes, 1.0, [])
    assert "error: it broke" in text and "- Exactness (gloo, 2 ranks): no time was left" in text


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
    expected = {"waits": 1, "copies": 1, "items": 1, "launches": 1, "cudaStreamSynchronize": 1}
    assert syncs.counted(events) == expected


def waited(mode: str, waits: float) -> Outcome:
    cell = Cell("syncs", "nccl1", "syncs", "BART-base", mode, "rate 0")
    counts = {"waits": waits, "copies": 0.0, "items": 0.0, "launches": 9.0}
    return Outcome(cell, [{"counts": counts, "warned": 0.0, "flag": False}])


def test_late_may_add_no_wait() -> None:
    plain = waited("plain", 1.0)
    assert judge.verdict(waited("late", 1.0), [plain]) == "ok"
    assert judge.verdict(waited("late", 2.0), [plain]) == "FAILED: waits 2 instead of 1"
    assert judge.verdict(waited("late", 1.0), []).startswith("FAILED")


def test_what_torch_alone_cannot_do_is_left_out() -> None:
    cells = [Cell("fsdp", "gloo2", "sharded", "tiny wav2vec2", mode, "FSDP1") for mode in ("plain", "auto")]
    found = __main__.torch_alone([Outcome(cells[0], error="no"), Outcome(cells[1], error="no")])
    assert all("torch alone cannot do it here" in each.left_out for each in found) and judge.failed(found) == 0


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
