"""Ranks with unequal numbers of batches end an epoch together: Executors of real trees, and stand-ins of our own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
import torch
from ddpfix.patches.wenet import batches

from tests.support import ranks
from tests.wenet import trees, uneven_runs
from tests.wenet.uneven_by_hand import apart, by_hand
from tests.wenet.uneven_runs import Outcome, era, shards, trained
from tests.wenet.uneven_tiny_model import Tiny, features

STAND_INS = Path(__file__).parent / "stand_ins"
TREES: List[Any] = trees.stood_in(("v1", "v2", "v3"), newest=False)
# These are enough to show each fault.
UNPATCHED = ("uneven", "step_mode", "validation", "empty", "loader", "fsdp")


class Runs:
    """All runs on one tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.era = tree, era(tree)
        plans = [plan for plan in uneven_runs.unpatched(tree) if plan.name in UNPATCHED]
        self.unpatched = uneven_runs.train(tree, plans, folder / "unpatched")
        self.patched = uneven_runs.train(tree, uneven_runs.patched(tree), folder / "patched")

    def __getitem__(self, name: str) -> Outcome:
        if name not in self.patched:
            pytest.skip("this release has nothing of the kind")
        return self.patched[name]

    def as_by_hand(self, name: str, numbers: Sequence[Sequence[int]], **how: Any) -> bool:
        """Whether all ranks ended well and equal, where training by hand ends, too."""
        outcome = self[name]
        if not outcome.well() or not outcome.equal():
            return False
        expected, first = by_hand(numbers, self.era, **how), outcome.ranks[0] or {}
        # Under model.join the statistics of BatchNorm are those of the last rank.
        parts = ("weights",) if name == "validation_off" else ("weights", "statistics")
        far = [apart(first[part], expected[part]) for part in parts]
        print(far, first["lr_after"], expected["lr"])
        return max(far) < 1e-5 and first["lr_after"] == expected["lr"]


@pytest.fixture(scope="module", params=[*TREES, *trees.real()])
def runs(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(request.param, tmp_path_factory.mktemp("uneven"))


def test_unpatched_fails_or_hangs(runs: Runs) -> None:
    words = {name: outcome.word() for name, outcome in runs.unpatched.items()}
    broken = ("hangs", "aborts", "error")
    assert words["empty"] in broken and words["loader"] == "hangs"
    if runs.era == 1:
        assert words["uneven"] == "hangs"
        return
    # From 2.0 on all batches are trained, but learning rates differ, and in the second epoch so do the weights.
    assert words["uneven"] == "ranks differ" and words["validation"] in broken
    assert runs.unpatched["uneven"].of("trained") == trained((3, 5), epochs=2)
    one, other = runs.unpatched["uneven"].ranks
    assert one and other and one["lr_after"] > other["lr_after"] and one["steps"][3] != other["steps"][5]
    if runs.era == 3:
        assert words["step_mode"] in broken
    if shards(runs.tree):
        assert all("has no attribute 'options'" in error for error in runs.unpatched["fsdp"].errors)


# By name: the counts of the ranks, the epochs, what each rank trains in an epoch, and what is said. Batch 0 is the
# smallest one of the first rank; one that has none is lent the other's.
EVENED: Dict[str, Any] = {
    **dict.fromkeys(
        ("uneven", "pipe"),
        (
            (3, 5),
            2,
            [[0, 1, 2, 0, 0], [100, 101, 102, 103, 104]],
            "had 3 to 5 batches in this epoch: each took 5 steps",
        ),
    ),
    "step_mode": ((3, 5), 1, [None, [100, 101, 102, 103, 104]], ""),
    "three": ((2, 4, 3), 1, [None, [100, 101, 102, 103], None], ""),
    "nothing": ((0, 3), 1, [[100, 100, 100], [100, 101, 102]], "ranks [0] have no batch at all in this epoch"),
}


@pytest.mark.patches("wenet.uneven")
@pytest.mark.parametrize("name", EVENED)
def test_a_rank_that_is_done_adds_zeros_until_the_last_one_is(runs: Runs, name: str) -> None:
    counts, rounds, expected, said = EVENED[name]
    assert runs.as_by_hand(name, trained(counts), rounds=rounds)
    for own, wanted in zip(runs[name].of("trained"), expected):
        assert len(own) == max(counts) * rounds
        assert wanted is None or own == wanted * rounds
    assert said in runs[name].logs[0]


@pytest.mark.patches("wenet.uneven")
@pytest.mark.parametrize("name", ["uneven_stop", "pipe_stop", "three_stop", "step_mode_stop"])
def test_all_stop_at_the_shortest(runs: Runs, name: str) -> None:
    outcome = runs[name]
    counts, rounds = ((2, 4, 3), 1) if name == "three_stop" else ((3, 5), 1 if name == "step_mode_stop" else 2)
    assert runs.as_by_hand(name, trained(counts), stop=True, rounds=rounds)
    shortest = min(counts)
    assert outcome.of("trained") == [own[:shortest] * rounds for own in trained(counts)]
    left = f"ranks stopped after {shortest} steps, when the first one had no more batches. What {len(counts) - 1} ranks"
    assert outcome.logs[0].count(left) == rounds


@pytest.mark.patches("wenet.uneven")
@pytest.mark.parametrize("name", ["nothing_stop", "fsdp_nothing"])
def test_to_stop_before_the_first_step_is_an_error_on_all_ranks(runs: Runs, name: str) -> None:
    assert all("1 of 2 ranks have no batch at all" in error for error in runs[name].errors)
    assert runs[name].of("trained") == [[], []]


@pytest.mark.patches("wenet.validation")
@pytest.mark.parametrize("name", ["validation", "validation_off"])
def test_validation_may_be_uneven(runs: Runs, name: str) -> None:
    assert runs.as_by_hand(name, trained((2, 2)))
    short, long = runs[name].of("cv")
    assert short != long
    one, other = runs[name].of("statistics")
    assert one == other


@pytest.mark.patches("wenet.uneven")
def test_batches_without_utterances_count_on_no_rank(runs: Runs) -> None:
    empty = [101] if runs.era == 3 else [102]
    assert runs.as_by_hand("empty", trained((4, 4), empty), accum=2)
    assert runs["empty"].of("trained")[1][:3] == trained((4, 4), empty)[1]


@pytest.mark.patches("wenet.uneven")
@pytest.mark.parametrize("name, cause", [("loader", "ValueError: file 102 is bad"), ("worker", "exited unexpectedly")])
def test_a_loader_that_fails_ends_all_ranks_with_the_cause(runs: Runs, name: str, cause: str) -> None:
    outcome = runs[name]
    assert outcome.word() == "all end with the cause" and cause in outcome.errors[1]
    assert "ddpfix: rank 1 failed: " in outcome.logs[0] and cause in outcome.logs[0]


@pytest.mark.patches("wenet.uneven")
def test_sharded_models_stop_together_however_slow_a_rank_is(runs: Runs) -> None:
    assert runs.as_by_hand("fsdp", trained((3, 5)), stop=True)
    assert runs.as_by_hand("slow", trained((4, 4)))
    assert "torch_fsdp does not support uneven=join: ddpfix uses uneven=stop" in runs["fsdp_join"].logs[0]


@pytest.mark.patches("wenet.barrier")
def test_without_agreement_the_barrier_works_as_on_older_torch(runs: Runs) -> None:
    assert runs.as_by_hand("fsdp_off", trained((3, 5)), stop=True)
    # It takes a slow rank for one that is done: two of four batches are trained.
    assert [len(batches) for batches in runs["slow_off"].of("trained")] == [2, 2]


@pytest.mark.patches("wenet.uneven")
def test_what_wenet_does_not_have_is_logged(runs: Runs) -> None:
    assert runs["asked_pad"].well()
    assert runs["asked_pad"].logs[0].count("WeNet does not support uneven=pad: ddpfix uses uneven=join") == 1
    assert "no uneven=" not in runs["uneven"].logs[0]


@pytest.mark.patches("wenet.uneven")
def test_all_is_as_it_was_after_undo(runs: Runs) -> None:
    outcome = runs["uneven"]
    names = (
        ["train"]
        + (["cv"] if runs.era > 1 else [])
        + (["wenet_join", "train_utils.wenet_join"] if runs.era == 3 else [])
    )
    assert outcome.of("changed") == [names] * 2
    assert outcome.of("left") == outcome.of("problems") == [[], []]
    # The model's own join, which is left out during an epoch.
    assert outcome.of("joins") == [False, False]


@pytest.mark.patches("wenet.uneven")
def test_ranks_agree_once_a_step(runs: Runs) -> None:
    counts: Dict[str, List[int]] = {name: runs[name].of("agreed") for name in ("asked_pad", "uneven")}
    # Once for each batch and once for the end; where it was uneven, once more for the line that says so.
    assert counts == {"asked_pad": [3, 3], "uneven": [2 * (5 + 1 + 1)] * 2}


# ``wenet_join`` under DeepSpeed's name, on two ranks of which one has fewer batches: 3.0.0 and 3.0.1 have no other
# engine that asks it.
SCRIPT = """\
import datetime
from tests.wenet import epochs
epochs.load()
from torch import distributed
from wenet.utils import executor
distributed.init_process_group("gloo")
rank = distributed.get_rank()
group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=2))
told = []
# The second rank has two batches, the first one more.
for batch in range(3 - rank):
    told.append(executor.wenet_join(group, {"train_engine": "deepspeed", "batch_idx": batch}))
print(f"TOLD {rank} {told}", flush=True)
distributed.barrier()
"""
LOST = "ProcessGroup' object has no attribute 'options'"
# In its third batch the first rank is alone.
RIGHT = {"0": "[False, False, True]", "1": "[False, False]"}


def environ(tree: Path, **more: str) -> Dict[str, str]:
    """Of a rank."""
    found = trees.environ(tree, OMP_NUM_THREADS="1", **more)
    # Where the test's own interpreter finds what is beside it.
    found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], *filter(None, sys.path[:1])])
    return found


@pytest.mark.patches("wenet.barrier")
@pytest.mark.parametrize("tree", trees.real(trees.since("v3.0.0")))
def test_a_rank_with_more_batches_is_told_to_stop(tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(SCRIPT)
    command = [*ranks.elastic(2), str(script)]
    code, printed = ranks.run(command, environ(tree), tmp_path, 120)
    assert code != 0 and LOST in printed and "TOLD" not in printed, printed[-4000:]
    code, printed = ranks.run(command, environ(tree, DDPFIX="1", DDPFIX_UNEVEN="off"), tmp_path, 120)
    assert code == 0 and dict(re.findall(r"TOLD (\d) (\[.*\])", printed)) == RIGHT, printed[-4000:]


# What the agreement is made of, in one process.


def gradients(model: Tiny, feats: torch.Tensor) -> Any:
    model.zero_grad()
    model.loss(feats).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_a_filler_has_zero_gradients_and_leaves_the_statistics() -> None:
    model = Tiny().train()
    before = gradients(model, features(1))
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    filling = batches.Filler(model)
    filling.keep({"feats": features(2)})
    filling.keep({"feats": features(0)})
    filling.keep({"feats": features(1)})
    assert torch.equal(filling.batch()["feats"], features(0))
    assert filling.batch() is not filling.batch()
    assert all(not grad.any() for grad in gradients(model, features(1)))
    assert torch.equal(model.norm.running_mean, statistics["norm.running_mean"])
    # Also where the loss is not finite.
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(model, features(1) * float("inf")))
    filling.close()
    assert filling.kept is None and model.norm.momentum == 0.1
    for name, value in model.named_buffers():
        value.copy_(statistics[name])
    assert all(torch.equal(one, other) for one, other in zip(before, gradients(model, features(1))))


@pytest.mark.parametrize("count", [0, 2])
def test_batches_without_utterances_are_known_by_their_targets(count: int) -> None:
    lengths = torch.ones(count)
    assert batches.without_utterances((["key"] * count, torch.ones(2), lengths, lengths, lengths)) is (count == 0)
    assert batches.without_utterances({"target_lengths": lengths}) is (count == 0)
    # Batches of another shape are not ours to judge.
    assert not batches.without_utterances({"feats": lengths}) and not batches.without_utterances(lengths)
