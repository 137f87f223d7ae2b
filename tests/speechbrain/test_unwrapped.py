"""What DDP leaves out: modules that are equal on all ranks where SpeechBrain means it, and calls past a wrapper.

Other calls past a wrapper, and those that stay where they are, are in tests/late/test_bypass.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest
import torch

from tests.speechbrain import launch, tiny_recipe, tiny_runs
from tests.speechbrain.tiny_runs import Side, as_by_hand, by_hand, end, run, since

SEEDS_BY_RANK = since("1.0.2", "1.0.3")
BY_RANK = since("0", "1.0.3")
NAMED = "copied target (Linear) from rank 0" if SEEDS_BY_RANK else "target (Linear) differs between ranks"
STATISTICS = "normalize (InputNormalization, global): each rank keeps statistics"

STEPS: List[List[tiny_runs.Micro]] = [[(0, 100)], [(1, 101)], [(2, 102)]] * 2
# These clip before the backward, when there is no gradient yet; speechbrain.clipping fixes that.
CLIPS_NOTHING = since("0.5.15", "1.0.0")
# It is told once, by the first rank.
SAID = "tiny_recipe.py:{} calls model without DDP, so its gradients would not be averaged"


def scenarios(folder: Path) -> List[launch.Scenario]:
    folder.mkdir(parents=True, exist_ok=True)
    text = tiny_recipe.FROZEN
    if since("1.0.2"):
        text = text.replace("!apply:torch.manual_seed [7]", "!apply:speechbrain.utils.seed_everything [7]")
    (folder / "frozen.yaml").write_text(text)
    (folder / "alike.yaml").write_text(tiny_recipe.FROZEN)
    typed = {"seeded": [], "apart": ["--apart=1.0"], "sentence": ["--norm_type=sentence"], "alike": []}
    files = {name: folder / ("alike.yaml" if name == "alike" else "frozen.yaml") for name in typed}
    return [
        *(
            launch.Scenario(name, files[name], options=["--counts=2,2", *words], script=tiny_recipe.SCRIPT, timeout=30)
            for name, words in typed.items()
        ),
        run(folder, "all", past="all", number_of_epochs=2, keep=False),
    ]


unpatched, patched = tiny_runs.sides(lambda folder, ddpfix: scenarios(folder))


def targets(runs: Side, name: str) -> List[torch.Tensor]:
    assert tiny_runs.well(runs[1][name]), runs[1][name]
    return [end(runs[0], name, rank)["target"] for rank in (0, 1)]


def said(runs: Side, name: str, words: str) -> List[int]:
    """How many lines of each rank have these words."""
    return [sum(words in line for line in result.log.splitlines()) for result in runs[1][name]]


def reference() -> Dict[str, torch.Tensor]:
    """Two steps by hand, on the mean over both ranks, with the target of the first rank."""
    torch.manual_seed(7)
    # In the order of the yaml.
    target = torch.nn.Linear(4, 4).requires_grad_(False)
    model = torch.nn.Linear(4, 1)
    for step in range(2):
        inputs = torch.stack([tiny_recipe.row(step), tiny_recipe.row(100 + step)])
        grads = torch.autograd.grad(model(target(inputs)).square().mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads):
                parameter -= 0.1 * grad
    return {"weight": model.weight.detach(), "bias": model.bias.detach()}


def error(runs: Side, name: str) -> float:
    found = [end(runs[0], name, rank) for rank in (0, 1)]
    return max(float((each[key] - value).abs().max()) for each in found for key, value in reference().items())


def test_unpatched_ranks_have_other_frozen_modules_where_the_seed_has_the_rank_in_it(unpatched: Side) -> None:
    first, second = targets(unpatched, "seeded")
    assert torch.equal(first, second) != SEEDS_BY_RANK
    assert (error(unpatched, "seeded") > 1e-3) == SEEDS_BY_RANK
    first, second = targets(unpatched, "apart")
    assert not torch.equal(first, second)


@pytest.mark.patches("speechbrain.unwrapped")
def test_ranks_have_the_frozen_modules_of_the_first(unpatched: Side, patched: Side) -> None:
    first, second = targets(patched, "seeded")
    # Those that the first rank has without ddpfix.
    assert torch.equal(first, second) and torch.equal(first, targets(unpatched, "seeded")[0])
    assert error(patched, "seeded") < 1e-6
    assert said(patched, "seeded", NAMED) == [int(SEEDS_BY_RANK), 0]


@pytest.mark.patches("speechbrain.unwrapped")
def test_a_module_that_the_recipe_parts_is_named(unpatched: Side, patched: Side) -> None:
    first, second = targets(patched, "apart")
    assert torch.equal(first, targets(unpatched, "apart")[0])
    assert torch.equal(first, second) == SEEDS_BY_RANK
    if not SEEDS_BY_RANK:
        assert torch.equal(second, targets(unpatched, "apart")[1])
    assert said(patched, "apart", NAMED) == [1, 0]


@pytest.mark.patches("speechbrain.unwrapped")
def test_modules_that_are_alike_stay_what_they_are(unpatched: Side, patched: Side) -> None:
    assert all(map(torch.equal, targets(patched, "alike"), targets(unpatched, "alike")))
    assert [each.steps for each in patched[1]["alike"]] == [each.steps for each in unpatched[1]["alike"]]
    assert said(patched, "alike", NAMED) == [0, 0]


@pytest.mark.patches("speechbrain.unwrapped")
def test_statistics_by_rank_are_named(unpatched: Side, patched: Side) -> None:
    assert said(patched, "seeded", STATISTICS) == [int(BY_RANK), 0]
    assert said(patched, "sentence", "InputNormalization, ") == [0, 0]
    assert said(unpatched, "seeded", "InputNormalization, ") == [0, 0]


def test_unpatched_replicas_part_in_silence(unpatched: Side) -> None:
    where, runs = unpatched
    assert tiny_runs.well(runs["all"])
    first, second = runs["all"]
    assert len(first.steps) == len(STEPS) and first.steps[0] != second.steps[0]
    # Each rank has trained on its own batches alone.
    alone: List[List[tiny_runs.Micro]] = [[(batch[0][0],)] for batch in STEPS]
    assert tiny_runs.error(where, "all", by_hand(alone, clip=float("inf") if CLIPS_NOTHING else 5.0)) < 1e-6


@pytest.mark.patches("speechbrain.bypass")
def test_patched_it_trains_as_through_the_wrapper(patched: Side) -> None:
    as_by_hand(patched, "all", STEPS)
    lines = tiny_recipe.SCRIPT.read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "return (self.hparams if" in text)
    first, second = patched[1]["all"]
    assert SAID.format(line) in first.log and "calls model without DDP" not in second.log
