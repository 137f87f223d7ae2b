"""What ranks do together in an epoch and a validation.

Gradient accumulation: unpatched replicas diverge; with ddpfix they are those of the release that was edited by hand.
Validation: a loss that is not finite on one rank does not part it from the others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Dict, List

import pytest

from ddpfix import __version__
from tests.funasr import launch, tiny_training, trained
from tests.support.results import well
from tests.support.scenario import sides

pytestmark = pytest.mark.patches("funasr.accumulation", "funasr.validation")

Runs = Dict[str, List[launch.Result]]

# From 1.4.2 on trainer_ds is right.
DS_IS_RIGHT = trained.release() >= (1, 4, 2)
ENTRIES = trained.entries()

# Up to 1.0.17 the last batch of an epoch ends a window, too.
LAST_IS_A_WINDOW = trained.release() < (1, 0, 18)
THREE = "import torch.utils.data\ntorch.utils.data.DataLoader.__len__ = lambda self: 3\n"

# A loss that is not a number, in the second micro-batch of rank 1: unpatched, it is not averaged over ranks.
SPOILED = trained.wrapped_model(
    """
seen = []
def spoil(module, args, output):
    if module.training:
        seen.append(1)
        if rank == 1 and len(seen) == 2:
            return (output[0] * float("nan"), *output[1:])
wrapper.module.register_forward_hook(spoil)
"""
)

# From 1.1.8 to 1.4.14 train.py averages over ranks under a condition on the rank's own loss.
PARTED = (1, 1, 8) <= trained.release() < (1, 4, 15)

# Notes what each rank's validation losses are, and what the trainer makes of them.
LOSSES = """
recorder.record["losses"] = losses = []
def note(module, args, output):
    if not module.training:
        losses.append((output[0].item(), output[2].sum().item()))
wrapper.module.register_forward_hook(note)
"""
AVERAGES = """
from funasr.train_utils.trainer import Trainer
name = "validate_epoch" if hasattr(Trainer, "validate_epoch") else "_validate_epoch"
def validate(self, *args, original=getattr(Trainer, name), **kwargs):
    result = original(self, *args, **kwargs)
    recorder.record["averages"] = [getattr(self, "val_loss_avg", None), getattr(self, "val_acc_avg", None)]
    return result
setattr(Trainer, name, validate)
"""
VALIDATED = trained.wrapped_model(LOSSES) + AVERAGES
# The first validation loss of rank 1 is not a number.
NAN = trained.wrapped_model(
    """
seen = []
def spoil(module, args, output):
    if not module.training:
        seen.append(1)
        if rank == 1 and len(seen) == 1:
            return (output[0] * float("nan"), *output[1:])
wrapper.module.register_forward_hook(spoil)
"""
)


def by_hand(entry: str) -> str:
    """The edit of pull request 3472, which knows nothing of a last and shorter window."""
    condition = "(batch_idx + 1) % accum_grad != 0"
    if LAST_IS_A_WINDOW:
        condition += " and (batch_idx + 1) != len(self.dataloader_train)"
    return trained.edited(entry, trained.method("train_epoch"), ("batch_idx % accum_grad != 0", condition))


def scenario(name: str, config: Path, entry: str, accum_grad: int, before: str = "") -> launch.Scenario:
    overrides = [f"++train_conf.accum_grad={accum_grad}"]
    return launch.Scenario(name, config, entry, overrides, before=launch.starts() + before, keep=True, timeout=60)


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    config = trained.write(folder / "data")
    wanted = [scenario(f"train{n}", config, "train", n, VALIDATED) for n in ((1, 2, 4) if ddpfix else (1,))]
    wanted += [scenario(f"{entry}2", config, entry, 2) for entry in ENTRIES if not ddpfix or entry != "train"]
    if not ddpfix:
        edited = [entry for entry in ENTRIES if entry == "train" or not DS_IS_RIGHT]
        wanted += [scenario(f"{entry}2hand", config, entry, 2, by_hand(entry)) for entry in edited]
        wanted.append(scenario("train4hand", config, "train", 4, by_hand("train")))
    if LAST_IS_A_WINDOW:
        wanted.append(scenario("last", config, "train", 2, THREE + ("" if ddpfix else by_hand("train"))))
    # A run that hangs is ended early: it is expected to.
    wanted.append(replace(scenario("spoiled", config, "train", 2, SPOILED), timeout=60 if ddpfix else 8))
    wanted.append(
        replace(scenario("nan", config, "train", 1, NAN + VALIDATED), timeout=60 if ddpfix or not PARTED else 8)
    )
    return wanted


def train(wanted: List[launch.Scenario], folder: Path, ddpfix: bool) -> Runs:
    ours = trained.only("funasr.accumulation", "funasr.validation")
    return launch.train(wanted, folder, ddpfix, environ=ours if ddpfix else None)


unpatched, patched = sides(train, scenarios)


@pytest.mark.parametrize("entry", ENTRIES)
def test_unpatched_replicas_diverge(unpatched: Runs, entry: str) -> None:
    results = unpatched[f"{entry}2"]
    well(results)
    assert len(results[0].steps) == len(results[1].steps) >= 2
    if entry == "train_ds" and DS_IS_RIGHT:
        assert trained.same_steps(results) and trained.difference(*results) == 0.0
        return
    assert all(a != b for a, b in zip(results[0].steps, results[1].steps))
    # Adam's first step moves a parameter by the learning rate in either direction.
    assert trained.difference(*results) > 1e-4


@pytest.mark.parametrize("entry", ENTRIES)
def test_replicas_are_those_of_the_edit_by_hand(unpatched: Runs, patched: Runs, entry: str) -> None:
    mended = unpatched[f"{entry}2" if entry == "train_ds" and DS_IS_RIGHT else f"{entry}2hand"]
    for results in (patched[f"{entry}2"], mended):
        well(results)
        assert trained.same_steps(results) and trained.difference(*results) == 0.0
    assert patched[f"{entry}2"][0].steps == mended[0].steps
    assert trained.difference(patched[f"{entry}2"][0], mended[0]) == 0.0
    is_reported = "accum_grad=2: gradients are averaged over all ranks" in patched[f"{entry}2"][0].log
    assert is_reported == (not (entry == "train_ds" and DS_IS_RIGHT))


def test_windows_of_four(unpatched: Runs, patched: Runs) -> None:
    for results in (patched["train4"], unpatched["train4hand"]):
        well(results)
        assert trained.same_steps(results)
    assert patched["train4"][0].steps == unpatched["train4hand"][0].steps
    assert trained.difference(patched["train4"][1], unpatched["train4hand"][1]) == 0.0


def test_an_incomplete_window_at_the_end_is_dropped_as_ever(patched: Runs) -> None:
    assert [len(patched[f"train{n}"][0].steps) for n in (1, 2, 4)] == [4 if LAST_IS_A_WINDOW else 5, 2, 1]


@pytest.mark.skipif(not LAST_IS_A_WINDOW, reason="an incomplete window is dropped")
def test_the_last_and_shorter_window(unpatched: Runs, patched: Runs) -> None:
    for results in (patched["last"], unpatched["last"]):
        well(results)
        # Steps after the second, the third and the fourth micro-batch.
        assert trained.same_steps(results) and len(results[0].steps) == 3
    assert patched["last"][0].steps == unpatched["last"][0].steps


def test_without_accumulation_nothing_is_touched(unpatched: Runs, patched: Runs) -> None:
    well(patched["train1"])
    assert trained.same_steps(patched["train1"]) and patched["train1"][0].steps == unpatched["train1"][0].steps
    assert "accum_grad" not in patched["train1"][0].log.split(f"ddpfix {__version__}", 1)[1]


@pytest.mark.parametrize("entry", tiny_training.entries())
def test_which_micro_batches_synchronise(entry: str, tmp_path: Path) -> None:
    def windows() -> List[bool]:
        run = tiny_training.Run(entry, tmp_path, use_ddp=True, accum_grad=4)
        flags: List[bool] = []
        run.model.register_forward_hook(lambda *_: flags.append(run.wrapper.require_backward_grad_sync))
        run.train()
        assert run.wrapper.require_backward_grad_sync and "no_sync" not in vars(run.wrapper)
        assert not run.wrapper._forward_pre_hooks
        return flags

    last = LAST_IS_A_WINDOW and entry == "train"
    with trained.alone(tmp_path):
        if not (entry == "train_ds" and DS_IS_RIGHT):
            assert windows() == [True, False, False, False, True, False]
        with trained.active("funasr.accumulation"):
            assert windows() == [False, False, False, True, False, last]


@pytest.mark.parametrize("entry", tiny_training.entries())
def test_an_epoch_that_fails_leaves_nothing_behind(entry: str, tmp_path: Path) -> None:
    with trained.alone(tmp_path), trained.active("funasr.accumulation"):
        run = tiny_training.Run(entry, tmp_path, use_ddp=True, accum_grad=4)
        run.model.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.train()
        assert run.wrapper.require_backward_grad_sync and "no_sync" not in vars(run.wrapper)
        assert not run.wrapper._forward_pre_hooks


def test_a_norm_that_is_not_finite_on_one_rank(unpatched: Runs, patched: Runs) -> None:
    broken = unpatched["spoiled"]
    assert any(result.hung or result.error for result in broken) or not trained.same_steps(broken)
    well(patched["spoiled"])
    assert trained.same_steps(patched["spoiled"])
    # The first window is skipped on both ranks, the others are not.
    assert len(patched["spoiled"][0].steps) == len(patched["train2"][0].steps) - 1
    assert all("Skipping updating the model" in result.log for result in patched["spoiled"])


def scaled(results: List[launch.Result]) -> List[List[float]]:
    """The validation losses by rank, as the trainer weighs them."""
    both = [result.notes["losses"] for result in results]
    totals = [sum(weight for _, weight in batch) for batch in zip(*both)]
    return [[loss * weight * len(both) / total for (loss, weight), total in zip(mine, totals)] for mine in both]


@pytest.mark.skipif(not PARTED, reason="every rank comes to every collective")
def test_a_validation_loss_that_is_not_finite(unpatched: Runs, patched: Runs) -> None:
    assert any(result.hung or result.error for result in unpatched["nan"]), [
        r.notes["averages"] for r in unpatched["nan"]
    ]
    well(patched["nan"])
    first, second = scaled(patched["nan"])
    assert math.isnan(second[0]) and len(first) == len(second) >= 2
    finite = first + second[1:]
    for result in patched["nan"]:
        assert result.notes["averages"][0] == pytest.approx(sum(finite) / len(finite), rel=1e-5)
    assert "validation: 1 batches (all ranks) had a loss that is not finite" in patched["nan"][0].log


@pytest.mark.skipif(PARTED, reason="ranks part")
def test_a_validation_loss_that_is_not_finite_spreads_to_all(unpatched: Runs) -> None:
    well(unpatched["nan"])
    if trained.release() >= (1, 0, 18):
        assert all(math.isnan(result.notes["averages"][0]) for result in unpatched["nan"])


def test_finite_validation_losses_are_averaged_as_ever(unpatched: Runs, patched: Runs) -> None:
    for one, other in zip(unpatched["train1"], patched["train1"]):
        assert one.notes["losses"] == other.notes["losses"] and one.notes["averages"] == other.notes["averages"]
