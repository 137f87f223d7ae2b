"""The checks of ``python -m tests.gpu`` fail where something is wrong, and its counts count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import __main__, kept, launch, report, sections, syncs  # noqa: E402
from tests.gpu.catalogue import everything  # noqa: E402
from tests.gpu.cells import GROUPS, Cell, lacking  # noqa: E402
from tests.gpu.launch import Outcome  # noqa: E402
from tests.gpu.order import launches  # noqa: E402
from tests.gpu.sections import verdict  # noqa: E402

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
    assert verdict(outcome, []) == said and report.failed([outcome]) == (said != "ok")


def test_an_error_fails_and_what_is_left_out_does_not() -> None:
    outcomes = [Outcome(EXACT, error="it broke"), Outcome(EXACT, left_out="no time was left")]
    assert report.failed(outcomes) == 1
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


def test_cells_that_were_not_run_are_counted_by_reason() -> None:
    well = looped("plain")
    outcomes = [well, Outcome(EXACT, left_out="no time was left"), Outcome(EXACT, left_out="needs two cards")]
    text = report.markdown(MACHINE, outcomes, 1.0, [])
    assert "2 of 3 cells were not run (needs two cards 1 | no time was left 1)." in text
    assert "All checks passed." not in text
    assert "All checks passed." in report.markdown(MACHINE, [well], 1.0, [])


def test_one_card_is_not_two() -> None:
    one = {**MACHINE, "devices": 1}
    reasons = {lacking(cell, one) for cell in everything(one, False) if cell.group == "nccl2"}
    assert reasons == {"needs two cards"}
    small = {
        lacking(cell, {**MACHINE, "memory": 16_000}) for cell in everything(MACHINE, False) if cell.section == "table"
    }
    assert small == {"needs a card with 32 GB"}
    assert not any(lacking(cell, MACHINE) for cell in everything(MACHINE, False))


def test_results_are_kept_for_the_same_machine(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    first = kept.Kept(file, MACHINE)
    first.add([Outcome(EXACT, ranks(), seconds=3.0), Outcome(replace(EXACT, mode="find"), left_out="no time was left")])
    again = kept.Kept(file, MACHINE)
    found = again.of(replace(EXACT, limit=1.0))
    assert found is not None and found.found == ranks() and found.seconds == 3.0
    assert again.of(replace(EXACT, mode="find")) is None
    assert kept.Kept(file, {**MACHINE, "device": "another card"}).of(EXACT) is None
    assert again.of_other_sources([EXACT]) == 0


def test_results_of_another_ddpfix_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    kept.Kept(file, MACHINE).add([Outcome(EXACT, ranks())])
    monkeypatch.setattr(kept, "source", lambda: "another")
    assert kept.Kept(file, MACHINE).of_other_sources([EXACT, replace(EXACT, mode="find")]) == 1
    text = report.markdown(MACHINE, [Outcome(EXACT, ranks())], 1.0, [], 1)
    assert "1 results are of another state of ddpfix" in text


def test_what_ran_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that failed is run again where it is asked for, and all are with ``--again``."""
    other = replace(EXACT, mode="find")
    store = kept.Kept(tmp_path / "results.json", MACHINE)
    store.add([Outcome(EXACT, ranks()), Outcome(other, error="it broke")])
    asked: List[List[Cell]] = []

    def run(cells: Any, *_: Any) -> List[Outcome]:
        asked.append(list(cells))
        return [Outcome(cell, ranks()) for cell in cells]

    monkeypatch.setattr(__main__, "_run", run)
    for again, expected in (("", []), ("failed", [other]), ("all", [EXACT, other])):
        outcomes = __main__._outcomes([EXACT, other], MACHINE, store, again, 0.0)
        assert asked.pop() == expected and [each.cell for each in outcomes] == [EXACT, other]


def test_the_table_has_a_row_for_each_mode() -> None:
    cell = Cell("table", "nccl1", "speed", "WavLM-large", "", "rate 0.1", {"rate": 0.1, "modes": ["flag", "late"]})
    figures: Dict[str, Any] = {"turns": [200.0, 210.0], "layers": [22, 21], "peak": 5e4, "error": None}
    figures.update(reserved=6e4, left=0.0, counts={"waits": 1.0, "copies": 1.0})
    modes = {"flag": figures, "late": {**figures, "turns": [100.0, 105.0], "counts": {"waits": 0.0}}}
    text = report.for_costs(MACHINE, [Outcome(cell, [{"modes": modes, "steps": 4}])])
    row = "| NCCL, 1 rank | WavLM-large, rate 0.1 | late | 102.5 (100.0 to 105.0) | 0.50 | 21.5 | 0.0 | 0.0 | 50000 |"
    assert row in text and "a card" in text.splitlines()[0]


def test_the_kit_keeps_to_this_machine() -> None:
    """A machine without a network may have no address for its own name."""
    environ = launch.environment()
    assert environ["GLOO_SOCKET_IFNAME"] == environ["NCCL_SOCKET_IFNAME"] == "lo"


def test_what_torch_alone_cannot_do_is_left_out() -> None:
    child = Outcome(Cell("starts", "nccl1", "children", "", "auto", "device_id"), [{"left_out": "torch alone cannot"}])
    cells = [Cell("graphs", "gloo2", "graphs", "", mode, "whole step captured") for mode in ("plain", "auto")]
    found = sections.torch_alone([child, *(Outcome(cell, error="no") for cell in cells)])
    assert [each.left_out for each in found] == ["torch alone cannot", *["torch alone cannot do it here (no)"] * 2]
    assert report.failed(found) == 0


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
