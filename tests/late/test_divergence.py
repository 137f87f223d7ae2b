"""Replicas that part, and models that were never averaged, are named; right ones are not (accelerate 2907)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import pytest
import torch
from ddpfix.patches.torch.internals import reducer
from ddpfix.patches.torch.pipeline import ddp
from ddpfix.patches.torch.replicas import divergence, fingerprint
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddpfix
from ddpfix.rules import replicas
from ddpfix.rules.replicas import Snapshot
from tests.late.launch import Ranks, Scenario, ends, said, steps
from tests.late.one_rank import alone, undone  # noqa: F401
from tests.support import ranks as kit

pytestmark = pytest.mark.patches("torch.divergence")
SAID = "rank 1 diverged from rank 0 in Sequential"
# What every rank says, by program; a comparison every four steps.
PARTED: Dict[str, Sequence[str]] = {
    "parting:rates": ["step 1: 4 of 4 parameters", "; lr 0.1 there, 0.05 here."],
    "parting:past_for_a_while": ["between steps 2 and 4: 4 of 4 parameters, first 0.weight (by "],
    "parting:changed": ["between steps 4 and 8: 1 of 4 parameters, first 2.weight (by 0.25 or more)"],
    "parting:compressed_parts": ["between steps 4 and 8: 1 of 4 parameters, first 2.weight (by 0.2"],
    "parting:rate_of_a_group": ["between steps 4 and 8: ", "weight_decay of group 1 0.01 there, 0.0 here"],
    "unaveraged:twice": ["By optimizer step 1 this rank has averaged 2 times, rank 0 once", "loss * 0"],
    "unaveraged:mixed": [
        "2 optimizer steps before that used only gradients of forwards under no_sync",
        "(unaveraged.py:",
    ],
}
# What the second rank says of a model that was never averaged: accelerate's accumulate within another one and so on.
NO_SYNC = r"Its forward ran under no_sync \(unaveraged\.py:\d+\)\. Leave no_sync for the last backward"
NEVER = {
    **dict.fromkeys(("within", "outside", "flagged", "accumulated_within", "first_only"), NO_SYNC),
    "flag_set_after": r"require_backward_grad_sync=False \(flag_set_after\.py:12\): set it before the forward",
    "backward_inside": r"It ran inside the forward \(unaveraged\.py:\d+\), .* call backward after the forward",
}
# Nothing is said of replicas that differ where DDP has not averaged what they were moved by, where the program moves
# them itself or averages, and of what DDP does not average: it may be intended.
RIGHT = (
    *("parting:past", "parting:past_in_half", "parting:past_and_broadcast_in_half", "parting:set_free"),
    *("parting:replaced", "parting:head", "parting:adapted", "parting:noise_in_a_hook", "parting:noise_in_gradients"),
    *("parting:healthy", "parting:own_hook", "parting:post_local_sgd", "parting:joined", "parting:in_backward"),
    *("parting:head_averaged", "parting:head_broadcast", "parting:past_and_broadcast", "parting:past_and_averaged"),
    *("unaveraged:gradients_by_hand", "unaveraged:parameters_by_hand", "unaveraged:parameters_now_and_then"),
    *("unaveraged:first_rank_rules", "unaveraged:noise", "unaveraged:same_data", "unaveraged:no_sync_around_backward"),
    *("unaveraged:flag_set_before", "unaveraged:warm_up", "unaveraged:as_often", "unaveraged:another_forward"),
)
EVERY = {"divergence": "4"}


def plans(folder: Path) -> List[Scenario]:
    names = (*PARTED, *RIGHT, *(f"unaveraged:{name}" for name in NEVER))
    plans = [Scenario(name, function=name, settings=EVERY) for name in names]
    plans += [Scenario(f"plain-{name}", function=name) for name in names]
    plans += [
        Scenario("error", function="parting:changed", settings={"divergence": "error"}),
        Scenario("error-noise", function="parting:noise_in_a_hook", settings={"divergence": "error"}),
        Scenario("off", function="parting:rates", settings={"divergence": "off"}),
        Scenario("off-within", function="unaveraged:within", settings={"divergence": "off"}),
        Scenario("switched", function="parting:rates", settings={**EVERY, "torch_divergence": "0"}),
        Scenario("three", function="parting:rates", settings=EVERY, size=3),
        Scenario("three-within", function="unaveraged:within", settings=EVERY, size=3),
    ]
    return plans


def lines(ranks: Ranks) -> List[List[str]]:
    """What each rank said of replicas that differ."""
    return said(ranks, "diverged from rank", "never averaged the last backward", "averages mix different steps")


def as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    """Every parameter was the same after every step, bit for bit."""
    # DDP waits for a layer that was replaced, as in plain torch.
    if name != "parting:replaced":
        assert ends(outcomes[name]) == ends(outcomes[f"plain-{name}"]) == ["", ""], outcomes[name]
        assert steps(outcomes[name]) == steps(outcomes[f"plain-{name}"])


@pytest.mark.parametrize("name", PARTED)
def test_every_rank_says_which_one_differs(outcomes: Dict[str, Ranks], name: str) -> None:
    for found in lines(outcomes[name]):
        assert len(found) == 1 and all(words in found[0] for words in (SAID, *PARTED[name])), outcomes[name]
    if name.startswith("parting:"):
        assert len({each for found in lines(outcomes[name]) for each in found}) == 1, outcomes[name]
    # It was so: the ranks trained different models, as in plain torch.
    unlike(outcomes[name])
    as_in_plain_torch(outcomes, name)


def unlike(ranks: Ranks) -> None:
    trained = [record["steps"] for _, record in ranks if record is not None]
    assert trained[0] != trained[1]


# torch 2.0 ends a backward inside the forward of a static graph by itself.
@pytest.mark.parametrize("name", [name for name in NEVER if reducer.AT_ANY_TIME or name != "backward_inside"])
def test_a_model_that_was_never_averaged_is_named_once(outcomes: Dict[str, Ranks], name: str) -> None:
    ranks = outcomes[f"unaveraged:{name}"]
    found = sum(lines(ranks), [])
    assert len(found) == 1 and re.search(r"on rank 1: this \w+ differs from rank 0's: in 4 optimizer steps", found[0])
    assert re.search(NEVER[name], found[0]) and len(found[0]) <= 240, found
    unlike(ranks)
    as_in_plain_torch(outcomes, f"unaveraged:{name}")


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_replicas_that_are_right(outcomes: Dict[str, Ranks], name: str) -> None:
    assert lines(outcomes[name]) == [[], []]
    as_in_plain_torch(outcomes, name)


def test_an_error_ends_every_rank(outcomes: Dict[str, Ranks]) -> None:
    found = ends(outcomes["error"])
    assert all("DivergenceError" in end and "between steps 4 and 8" in end for end in found), found
    # In one step: a step later where the first digest came late.
    first, second = (len(record["steps"]) for _, record in outcomes["error"] if record is not None)
    assert first == second and first in (9, 10)
    assert ends(outcomes["error-noise"]) == ["", ""]


@pytest.mark.parametrize("name", ["switched", "off", "off-within"])
def test_switched_off_nothing_is_compared(outcomes: Dict[str, Ranks], name: str) -> None:
    assert ends(outcomes[name]) == ["", ""] and lines(outcomes[name]) == [[], []]


def test_the_first_of_several_that_differ_is_named_on_all(outcomes: Dict[str, Ranks]) -> None:
    found = lines(outcomes["three"])
    assert [len(each) for each in found] == [1, 1, 1]
    # Each of those that differ tells its own difference; the first one of the group tells one of them.
    assert found[0][0] in (found[1][0], found[2][0])
    first, second, third = lines(outcomes["three-within"])
    assert (first, third) == ([], []) and len(second) == 1 and second[0].startswith("ddpfix: on rank 1: "), second


# In one process.


def test_a_single_rank_has_no_hook() -> None:
    ddpfix.activate(log="off")
    assert ddp.of(DistributedDataParallel(nn.Linear(2, 2))) is not None
    drift = next(stage for stage in ddp.stages() if isinstance(stage, divergence.Divergence))
    assert drift.place not in drift._optimizer_steps._at


def seen(optimizer: Any, **parameters: Any) -> Snapshot:
    found: Optional[Snapshot] = fingerprint.PendingSnapshot(3, 5, parameters, optimizer).finish()
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 5), (0, 3)])
def test_what_is_seen_of_a_parameter(dtype: Any, shape: Any) -> None:
    one = nn.Parameter(torch.randn(shape).to(dtype))
    turned = nn.Parameter(torch.randn(7, 5).to(dtype).t())
    for parameter in (one, turned):
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([{"params": [one, turned], "started": 1.5, "lr": torch.tensor(0.5)}], lr=0.1)
    here = seen(optimizer, a=one, b=turned)
    assert Snapshot(*json.loads(json.dumps(here))) == here
    assert here.rates["lr"] == "0.5" and here.rates["momentum"] == "0" and "started" not in here.rates
    assert replicas.difference(here, here) == replicas.Difference([], 0.0, [])
    with torch.no_grad():
        turned[1, 2] += 0.5
    optimizer.param_groups[0]["lr"] = 0.25
    moved = seen(optimizer, a=one, b=turned)
    found = replicas.difference(here, moved)
    assert found is not None and found.numbers == [1] and found.rates == [("lr", "0.5", "0.25")]
    assert fingerprint.digest(here) != fingerprint.digest(moved)
    # By gradients of this rank's own.
    assert turned.grad is not None
    turned.grad[0, 0] += 0.5
    assert replicas.difference(here, seen(optimizer, a=one, b=turned)) is None


# Runs of a few steps: what differs between ranks is said when their process group, or their program, ends.


# One rank changes its replica after the third of five steps.
PROGRAM = """
import sys
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

end = sys.argv[1]

def main():
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    data = TensorDataset(torch.arange(48.0).reshape(12, 4).sin())
    loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (batch,) in enumerate(loader):
        if step == 5:
            break
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if step == 2 and rank == 1:
            with torch.no_grad():
                model.module.weight.add_(0.25)
    if end == "destroyed":
        distributed.destroy_process_group()

main()
"""
DIVERGED = (
    "rank 1 diverged from rank 0 in Linear between steps 2 and 4: 1 of 2 parameters, first weight (by 0.25 or more)"
)


def in_a_run(folder: Path, end: str, **environ: str) -> List[str]:
    code, output = kit.script(PROGRAM, folder, end, DDPFIX="1", **environ)
    assert code == 0, output
    return [line for line in output.splitlines() if line.startswith("ddpfix: ")]


@pytest.mark.ranks
@pytest.mark.skipif(torch.__version__.startswith("2.0."), reason="threads share one connection: limitations.md")
@pytest.mark.parametrize(
    "end", ["destroyed", pytest.param("returned", marks=pytest.mark.sampled(inside=False, cells=True))]
)
def test_replicas_that_part_in_a_run_of_five_steps(tmp_path: Path, end: str) -> None:
    found = in_a_run(tmp_path, end)
    assert any(DIVERGED in line for line in found), found
    assert not any("diverged" in line for line in in_a_run(tmp_path, end, DDPFIX_DIVERGENCE="off"))
