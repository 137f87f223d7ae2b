"""Modules that DDP leaves out are equal on all ranks where SpeechBrain means them to be, or named: on real releases."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

import pytest
import torch

from tests.speechbrain import launch, tiny_recipe, tiny_runs
from tests.speechbrain.tiny_runs import Side, end, since

SEEDS_BY_RANK = since("1.0.2", "1.0.3")
BY_RANK = since("0", "1.0.3")
NAMED = "copied target (Linear) from rank 0" if SEEDS_BY_RANK else "target (Linear) differs between ranks"
STATISTICS = "normalize (InputNormalization, global): each rank keeps statistics"


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
        launch.Scenario(name, files[name], options=["--counts=2,2", *words], script=tiny_recipe.SCRIPT, timeout=30)
        for name, words in typed.items()
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
