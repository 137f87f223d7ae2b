"""Gradient accumulation: unpatched replicas diverge; ddpfix makes them those of the release that was edited by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Dict, List

import pytest

from ddpfix import __version__
from tests.funasr import launch, tiny_training, trained

pytestmark = pytest.mark.patches("funasr.accumulation")

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


def by_hand(entry: str) -> str:
    """The edit of pull request 3472, which knows nothing of a last and shorter window."""
    condition = "(batch_idx + 1) % accum_grad != 0"
    if LAST_IS_A_WINDOW:
        condition += " and (batch_idx + 1) != len(self.dataloader_train)"
    return trained.edited(entry, trained.method("train_epoch"), ("batch_idx % accum_grad != 0", condition))


def scenario(name: str, config: Path, entry: str, accum_grad: int, before: str = "") -> launch.Scenario:
    overrides = [f"++train_conf.accum_grad={accum_grad}"]
    return launch.Scenario(name, config, entry, overrides, before=launch.starts() + before, keep=True, timeout=60)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.write(tmp_path_factory.mktemp("accumulation"))


@pytest.fixture(scope="module")
def unpatched(config: Path) -> Runs:
    wanted = [scenario("train1", config, "train", 1)]
    for entry in ENTRIES:
        right = entry == "train_ds" and DS_IS_RIGHT
        wanted.append(scenario(f"{entry}2", config, entry, 2))
        if not right:
            wanted.append(scenario(f"{entry}2hand", config, entry, 2, by_hand(entry)))
    wanted.append(scenario("train4hand", config, "train", 4, by_hand("train")))
    if LAST_IS_A_WINDOW:
        wanted.append(scenario("lasthand", config, "train", 2, THREE + by_hand("train")))
    wanted.append(replace(scenario("spoiled", config, "train", 2, SPOILED), timeout=8))
    return launch.train(wanted, config.parent / "unpatched", ddpfix=False)


@pytest.fixture(scope="module")
def patched(config: Path) -> Runs:
    wanted = [scenario(f"train{n}", config, "train", n) for n in (1, 2, 4)]
    wanted += [scenario(f"{entry}2", config, entry, 2) for entry in ENTRIES if entry != "train"]
    if LAST_IS_A_WINDOW:
        wanted.append(scenario("last", config, "train", 2, THREE))
    wanted.append(scenario("spoiled", config, "train", 2, SPOILED))
    ours = trained.only("funasr.accumulation")
    return launch.train(wanted, config.parent / "patched", ddpfix=True, environ=ours)


def went_well(results: List[launch.Result]) -> None:
    for result in results:
        assert not result.hung and result.error is None, result.log[-3000:]


@pytest.mark.parametrize("entry", ENTRIES)
def test_unpatched_replicas_diverge(unpatched: Runs, entry: str) -> None:
    results = unpatched[f"{entry}2"]
    went_well(results)
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
        went_well(results)
        assert trained.same_steps(results) and trained.difference(*results) == 0.0
    assert patched[f"{entry}2"][0].steps == mended[0].steps
    assert trained.difference(patched[f"{entry}2"][0], mended[0]) == 0.0
    is_reported = "accum_grad=2: gradients are averaged over all ranks" in patched[f"{entry}2"][0].log
    assert is_reported == (not (entry == "train_ds" and DS_IS_RIGHT))


def test_windows_of_four(unpatched: Runs, patched: Runs) -> None:
    for results in (patched["train4"], unpatched["train4hand"]):
        went_well(results)
        assert trained.same_steps(results)
    assert patched["train4"][0].steps == unpatched["train4hand"][0].steps
    assert trained.difference(patched["train4"][1], unpatched["train4hand"][1]) == 0.0


def test_an_incomplete_window_at_the_end_is_dropped_as_ever(patched: Runs) -> None:
    assert [len(patched[f"train{n}"][0].steps) for n in (1, 2, 4)] == [4 if LAST_IS_A_WINDOW else 5, 2, 1]


@pytest.mark.skipif(not LAST_IS_A_WINDOW, reason="an incomplete window is dropped")
def test_the_last_and_shorter_window(unpatched: Runs, patched: Runs) -> None:
    for results in (patched["last"], unpatched["lasthand"]):
        went_well(results)
        # Steps after the second, the third and the fourth micro-batch.
        assert trained.same_steps(results) and len(results[0].steps) == 3
    assert patched["last"][0].steps == unpatched["lasthand"][0].steps


def test_without_accumulation_nothing_is_touched(unpatched: Runs, patched: Runs) -> None:
    went_well(patched["train1"])
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
    went_well(patched["spoiled"])
    assert trained.same_steps(patched["spoiled"])
    # The first window is skipped on both ranks, the others are not.
    assert len(patched["spoiled"][0].steps) == len(patched["train2"][0].steps) - 1
    assert all("Skipping updating the model" in result.log for result in patched["spoiled"])
