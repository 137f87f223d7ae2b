"""Replicas that part are named on every rank; those that are right, or differ on purpose, are not (accelerate 2907)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
import torch
from ddpfix.patches.torch.pipeline import ddp
from ddpfix.patches.torch.replicas import divergence, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import ddpfix
from ddpfix.rules import replicas
from ddpfix.rules.replicas import Snapshot
from tests.late import launch
from tests.late.launch import Ranks, Scenario, ends, said

pytestmark = pytest.mark.patches("torch.divergence")
SAID = "rank 1 diverged from rank 0 in Sequential "
# What is said, by scenario; a comparison every four steps.
PARTED = {
    "past_for_a_while": ["between steps 2 and 4: 4 of 4 parameters, first 0.weight (by "],
    "changed": ["between steps 4 and 8: 1 of 4 parameters, first 2.weight (by 0.25 or more)"],
    "compressed_parts": ["between steps 4 and 8: 1 of 4 parameters, first 2.weight (by 0.2"],
    "rates": ["step 1: 4 of 4 parameters", "; lr 0.1 there, 0.05 here."],
    "rate_of_a_group": ["between steps 4 and 8: ", "weight_decay of group 1 0.01 there, 0.0 here"],
}
# Nothing is said of replicas that differ where DDP has not averaged what they were moved by, where the program moves
# them itself, and of what DDP does not average: it may be intended.
RIGHT = (
    "past",
    "past_in_half",
    "past_and_broadcast_in_half",
    "set_free",
    "replaced",
    "head",
    "adapted",
    "noise_in_a_hook",
    "noise_in_gradients",
    "healthy",
    "own_hook",
    "post_local_sgd",
    "joined",
    "in_backward",
    "head_averaged",
    "head_broadcast",
    "past_and_broadcast",
    "past_and_averaged",
)
# Those that are compared with plain torch, too.
PLAIN = (
    "past_in_half",
    "changed",
    "healthy",
    "head",
    "adapted",
    "past_and_broadcast",
)
EVERY = {"divergence": "4"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Ranks]:
    names = (*PARTED, *RIGHT)
    plans = [Scenario(name, function=f"parting:{name}", settings=EVERY) for name in names]
    plans += [Scenario(f"plain-{name}", function=f"parting:{name}") for name in PLAIN]
    plans += [
        Scenario("error", function="parting:changed", settings={**EVERY, "divergence": "error"}),
        Scenario("error-noise", function="parting:noise_in_a_hook", settings={**EVERY, "divergence": "error"}),
        Scenario("off", function="parting:rates", settings={**EVERY, "divergence": "off"}),
        Scenario("switched", function="parting:rates", settings={**EVERY, "torch_divergence": "0"}),
        Scenario("three", function="parting:rates", settings=EVERY, size=3),
    ]
    return launch.train(plans, tmp_path_factory.mktemp("divergence"))


def lines(ranks: Ranks) -> List[List[str]]:
    """What each rank said of replicas that differ."""
    return said(ranks, "diverged from rank")


def as_in_plain_torch(outcomes: Dict[str, Ranks], name: str) -> None:
    """Every parameter was the same after every step, bit for bit."""
    if name in PLAIN:
        assert [record and record["steps"] for _, record in outcomes[f"plain-{name}"]] == [
            record and record["steps"] for _, record in outcomes[name]
        ]


def test_ranks_that_differ_say_so_and_equal_ones_do_not(tmp_path: Path) -> None:
    """What the README's command runs of the programs below."""
    switched = {**EVERY, "torch_divergence": "0"}
    plans = [
        Scenario("rates", function="parting:rates", settings=EVERY),
        Scenario("switched", function="parting:rates", settings=switched),
        Scenario("right", function=f"parting:{RIGHT[0]}", settings=EVERY),
    ]
    found = launch.train(plans, tmp_path)
    first, second = lines(found["rates"])
    assert first == second and len(first) == 1 and SAID in first[0]
    assert lines(found["switched"]) == lines(found["right"]) == [[], []]


@pytest.mark.parametrize("name", PARTED)
def test_every_rank_says_which_one_differs(outcomes: Dict[str, Ranks], name: str) -> None:
    first, second = lines(outcomes[name])
    assert first == second and len(first) == 1, outcomes[name]
    for words in (SAID, *PARTED[name]):
        assert words in first[0]
    # It was so: the ranks trained different models, as in plain torch.
    steps = [record["steps"] for _, record in outcomes[name] if record is not None]
    assert steps[0] != steps[1]
    as_in_plain_torch(outcomes, name)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_replicas_that_are_right(outcomes: Dict[str, Ranks], name: str) -> None:
    # DDP waits for a layer that was replaced, as in plain torch.
    assert ends(outcomes[name]) == ["", ""] or name == "replaced"
    assert lines(outcomes[name]) == [[], []]
    as_in_plain_torch(outcomes, name)


def test_an_error_ends_every_rank(outcomes: Dict[str, Ranks]) -> None:
    found = ends(outcomes["error"])
    assert all("DivergenceError" in end and "between steps 4 and 8" in end for end in found), found
    # In one step: a step later where the first digest came late.
    first, second = (len(record["steps"]) for _, record in outcomes["error"] if record is not None)
    assert first == second and first in (9, 10)
    assert ends(outcomes["error-noise"]) == ["", ""]


@pytest.mark.parametrize("name", ["off", "switched"])
def test_switched_off_nothing_is_compared(outcomes: Dict[str, Ranks], name: str) -> None:
    assert ends(outcomes[name]) == ["", ""] and lines(outcomes[name]) == [[], []]


def test_the_first_of_several_that_differ_is_named_on_all(outcomes: Dict[str, Ranks]) -> None:
    found = lines(outcomes["three"])
    assert [len(each) for each in found] == [1, 1, 1]
    # Each of those that differ tells its own difference; the first one of the group tells one of them.
    assert found[0][0] in (found[1][0], found[2][0])


# In one process.


@pytest.fixture
def model(tmp_path: Any) -> Iterator[Any]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    ddpfix.activate(log="off")
    yield DistributedDataParallel(nn.Linear(2, 2))
    ddpfix.deactivate()
    distributed.destroy_process_group()


def test_a_single_rank_has_no_hook(model: Any) -> None:
    assert ddp.of(model) is not None
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


def test_a_parameter_that_the_program_moves_after_the_step_is_not_compared() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    look = fingerprint.PendingSnapshot(1, 1, {"a": parameter}, torch.optim.SGD([parameter], lr=0.1))
    with torch.no_grad():
        parameter[1] += 0.5
    assert look.finish() is None


def test_only_plain_tensors_with_a_gradient_are_compared() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert not fingerprint.comparable(parameter)
    parameter.grad = torch.ones(2)
    assert fingerprint.comparable(parameter)
    meta = nn.Parameter(torch.ones(2, device="meta"))
    meta.grad = torch.ones(2, device="meta")
    assert not fingerprint.comparable(meta)
