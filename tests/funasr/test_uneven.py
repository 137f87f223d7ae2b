"""Ranks with different numbers of batches, on two ranks through FunASR's own entries: unpatched, and under ddpfix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Set

import pytest
from packaging.version import Version

from tests.funasr import launch, recipes
from tests.support.results import well
from tests.support.scenario import sides

pytestmark = pytest.mark.patches("funasr.uneven")

HERE = Version(launch.version())
OLD = Version("1.0.18") > HERE
# These have samplers that give all ranks as many batches, and the same ones.
EVEN = Version("1.0.6") <= HERE < Version("1.0.15")
SAME = Version("1.0.6") <= HERE < Version("1.0.18")
# From here to 1.0.28 the rank that is done first stops the others in trainer.py.
JOINED = not OLD and Version("1.0.29") > HERE
# 1.1.9 has a train_ds that cannot start on several ranks (patched by funasr.flag).
SECOND = Version("1.0.28") <= HERE and Version("1.1.9") != HERE
# Up to 1.0.25 the last epoch is max_epoch itself.
EPOCHS = 1 if Version("1.0.26") <= HERE else 2
LONG, SHORT = 4.0, 1.0
Runs = Dict[str, List[launch.Result]]

PROBE = """
import funasr.datasets.audio_datasets.datasets as datasets
original = datasets.AudioDataset.__getitem__
def seen(self, index):
    recorder.record.setdefault("seen", []).append(self.index_ds[index]["source"].rsplit("/", 1)[-1])
    return original(self, index)
datasets.AudioDataset.__getitem__ = seen
"""


def _corpus() -> List[float]:
    """One rank gets eight batches, the other two."""
    if Version("1.0.6") > HERE:
        # The list is cut into one part a rank.
        return [LONG] * 8 + [SHORT] * 8
    if OLD:
        # Six of rank 0 are over the limit.
        return [SHORT, SHORT] * 2 + [LONG, SHORT] * 6
    # Rank 0 has one a batch, rank 1 four.
    return [LONG, SHORT] * 8


def _config(folder: Path) -> Path:
    conf: Dict[str, Any] = {"batch_type": "token", "batch_size": 401, "shuffle": False, "max_token_length": 450}
    if Version("1.0.6") > HERE:
        conf.update(batch_type="length", batch_size=440, batch_sampler="DynamicBatchLocalShuffleSampler")
    elif OLD:
        conf.update(batch_type="example", batch_size=1, max_token_length=200)
        conf["batch_sampler"] = "CustomDistributedBatchSampler"
    # 1.0.24 deletes the only model that it keeps, or keeps none of its best step, and then wants to average it.
    keep = {"keep_nbest_models": 10, "avg_nbest_model": 10}
    # Before 1.0.6 no conformer can be built.
    model = "Paraformer" if Version("1.0.6") > HERE else "Conformer"
    return recipes.write(folder, model, _corpus(), dataset_conf=conf, train_conf=keep)


def _expected() -> Set[str]:
    """The utterances that keep to the limits."""
    kept = [number for number, seconds in enumerate(_corpus()) if not SAME or seconds == SHORT]
    return {f"train{number}.wav" for number in kept}


def _scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    config = _config(folder / "data")
    short = 60 if ddpfix or JOINED else 10
    plans = []
    if SAME:
        share = ["++dataset_conf.batch_sampler=DynamicBatchLocalShuffleSampler", "++dataset_conf.batch_size=2"]
        plans.append(launch.Scenario("share", config, overrides=share, before=PROBE))
    if EVEN:
        return plans
    plans.append(launch.Scenario("train", config, before=PROBE, timeout=short))
    if SECOND:
        plans.append(launch.Scenario("train_ds", config, "train_ds", before=PROBE, timeout=short))
    if not ddpfix:
        return plans
    stop = launch.Scenario("stop", config, settings={"uneven": "stop"}, before=PROBE)
    # What rank 0 has is over the limit, or over the batch size.
    empty = ["++dataset_conf.max_token_length=120" if OLD else "++dataset_conf.batch_size=300"]
    if SAME:
        return [*plans, stop]
    # Workers that live on from one epoch to the next, and validation in the midst of an epoch.
    busy = ["++dataset_conf.num_workers=2", "++train_conf.max_epoch=3", "++train_conf.validate_interval=3"]
    busy.append("++train_conf.save_checkpoint_interval=3")
    workers = launch.Scenario("workers", config, "train_ds" if SECOND else "train", overrides=busy, timeout=120)
    return [*plans, stop, workers, launch.Scenario("empty", config, overrides=empty)]


unpatched, patched = sides(launch.train, _scenarios)
uneven = pytest.mark.skipif(EVEN, reason="all ranks have as many batches from 1.0.6 to 1.0.14")
ENTRIES = ["train", "train_ds"] if SECOND else ["train"]


def _seen(rank: launch.Result) -> List[str]:
    return [name for name in rank.notes["seen"] if name.startswith("train")]


@uneven
@pytest.mark.parametrize("entry", ENTRIES)
def test_unpatched_does_not_finish_together(unpatched: Runs, entry: str) -> None:
    ranks = unpatched[entry]
    if entry == "train" and JOINED:
        assert [rank.error for rank in ranks] == [None, None]
        assert [len(rank.training) for rank in ranks] == [2 * EPOCHS] * 2, "one rank drops six batches in silence"
    else:
        assert any(rank.hung for rank in ranks) or all(rank.error for rank in ranks)


@uneven
@pytest.mark.parametrize("entry", ENTRIES)
def test_all_ranks_do_the_same_steps(patched: Runs, entry: str) -> None:
    ranks = patched[entry]
    well(ranks)
    assert [len(rank.training) for rank in ranks] == [8 * EPOCHS] * 2
    assert ranks[0].steps == ranks[1].steps and len(ranks[0].steps) == 8 * EPOCHS
    assert {name for rank in ranks for name in _seen(rank)} == _expected()
    assert "8 batches on each of 2 ranks" in ranks[0].log
    assert "6 repeated to give every rank the same number" in ranks[0].log


@uneven
def test_stop_at_the_shortest(patched: Runs) -> None:
    ranks = patched["stop"]
    well(ranks)
    assert [len(rank.training) for rank in ranks] == [2 * EPOCHS] * 2
    assert ranks[0].steps == ranks[1].steps
    assert "6 dropped to give every rank the same number" in ranks[0].log


@uneven
@pytest.mark.skipif(SAME, reason="the scenario is that of the others")
def test_workers_and_validation_in_the_midst_of_an_epoch(patched: Runs) -> None:
    ranks = patched["workers"]
    well(ranks)
    epochs = 3 if Version("1.0.26") <= HERE else 4
    assert [len(rank.training) for rank in ranks] == [8 * epochs] * 2
    assert ranks[0].steps == ranks[1].steps and len(ranks[0].steps) == 8 * epochs
    validated = [place for place, batch in enumerate(ranks[0].batches) if not batch["training"]]
    if Version("1.0.6") > HERE:
        assert validated[0] == 8, "no interval for it there: after an epoch"
    else:
        assert validated and validated[0] < 8, "in the first epoch, before its end"


@pytest.mark.skipif(SAME, reason="no sampler of these leaves one rank without data")
def test_a_rank_without_data_is_named_on_all_ranks(patched: Runs) -> None:
    errors = {rank.error for rank in patched["empty"]}
    assert len(errors) == 1
    assert "1 of 2 ranks have no batch (rank 0)" in str(errors.pop())


@pytest.mark.skipif(not SAME, reason="the default sampler knows its rank")
def test_each_rank_has_its_own_share(unpatched: Runs, patched: Runs) -> None:
    seen = [_seen(rank) for rank in unpatched["share"]]
    assert seen[0] == seen[1], "all ranks train on the same batches"
    ranks = patched["share"]
    well(ranks)
    assert ranks[0].steps == ranks[1].steps and ranks[0].steps
    first = [set(_seen(rank)[: len(_seen(rank)) // EPOCHS]) for rank in ranks]
    assert len(first[0] & first[1]) <= 2, "no more than one batch, to fill the last step"
    assert {name for rank in ranks for name in _seen(rank)} == _expected()
