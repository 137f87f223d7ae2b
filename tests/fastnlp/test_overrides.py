"""What a user says to DDP arrives, wherever he puts it; what is not clear is named (fastNLP issue 458)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import FAILURE, Result, Scenario, failures, finished
from tests.support.scenario import sides

pytestmark = [
    pytest.mark.patches("fastnlp.overrides"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="there are no ddp_kwargs before 1.0.0"),
]
Results = Dict[str, List[Result]]
FLAG = {"find_unused_parameters": True}
STATIC = {"static_graph": True}
# Every place in which a release drops it without a word.
MISPLACED: Dict[str, Dict[str, Any]] = {
    "flat": {"torch_kwargs": FLAG},
    "top": {"ddp_kwargs": FLAG},
    "of 0.7.0": FLAG,
    "fsdp": {"torch_kwargs": {"fsdp_kwargs": FLAG}},
    "fsdp at the top": {"fsdp_kwargs": FLAG},
    "fairscale": {"fairscale_kwargs": {"ddp_kwargs": FLAG}},
    "fairscale flat": {"fairscale_kwargs": {"fs_type": "ddp", **FLAG}},
    "static": STATIC,
    "static at the top": {"ddp_kwargs": STATIC},
    "auto": {"driver": "auto", "ddp_kwargs": FLAG},
}
OTHERS = [
    Scenario("given", kwargs={"torch_kwargs": {"ddp_kwargs": FLAG}}),
    Scenario("given static", kwargs={"torch_kwargs": {"ddp_kwargs": STATIC}}),
    Scenario("none", "whole", {"torch_kwargs": {"ddp_kwargs": None}}),
    Scenario("none at the top", "whole", {"ddp_kwargs": None}),
    Scenario("whole", "whole"),
    Scenario("both", kwargs={"ddp_kwargs": {"find_unused_parameters": False}, "torch_kwargs": {"ddp_kwargs": FLAG}}),
    Scenario("unclear", "whole", {"mixed_precision": "fp16"}),
    Scenario("sharded", "whole", {"driver": "torch_fsdp"}),
    Scenario(
        "driver",
        "whole",
        {"ddp_kwargs": FLAG},
        before="""
import torch
from fastNLP import TorchDDPDriver
given["driver"] = TorchDDPDriver(model, torch.device("cpu"), is_pull_by_torch_run=True)
""",
    ),
    Scenario("misspelled", "whole", {"torch_kwargs": {"ddp_kwargs": {"find_unused_parameter": True}}}),
    Scenario("misspelled at the top", "whole", {"ddp_kwargs": {"find_unused_parameter": True}}),
]


def scenarios(folder: Path, ddpfix: bool) -> List[Scenario]:
    """All runs, without what ddpfix does by default, which would hide whether a setting arrives."""
    runs = [*(Scenario(name, kwargs=kwargs) for name, kwargs in MISPLACED.items()), *OTHERS]
    if not ddpfix:
        return runs
    off = Scenario("off", kwargs=MISPLACED["flat"], settings={"unused": "off", "overrides": "off"})
    return [*(replace(run, settings={"unused": "off"}) for run in runs), off]


unpatched, ours = sides(launch.train, scenarios, ("unpatched", "ours"))


def log_text(result: Result) -> str:
    """What was printed, without rich's line breaks."""
    return " ".join(result.log.split())


@pytest.mark.parametrize("name", MISPLACED)
def test_what_was_dropped_arrives(unpatched: Results, ours: Results, name: str) -> None:
    assert FAILURE in failures(unpatched[name])[0]
    for result in unpatched[name]:
        assert result.hung or not (result.ddp[0]["find_unused_parameters"] or result.ddp[0]["static_graph"])
    static = "static" in name
    reference = unpatched["given static" if static else "given"]
    assert finished(ours[name]) == finished(reference)
    assert ours[name][0].ddp == reference[0].ddp
    assert all(result.given_stays for result in ours[name])
    word = "static_graph" if static else "find_unused_parameters"
    assert f"is used as torch_kwargs={{'ddp_kwargs': {{'{word}': True}}}}" in log_text(ours[name][0])


def test_only_the_fix_does_it(ours: Results) -> None:
    assert FAILURE in failures(ours["off"])[0]


def test_what_stands_in_the_right_place_wins(unpatched: Results, ours: Results) -> None:
    assert finished(ours["both"]) == finished(unpatched["given"])
    said = "ddp_kwargs: find_unused_parameters=False is not used, because find_unused_parameters=True is given too"
    assert said in log_text(ours["both"][0])


SAID = {
    "unclear": "fastNLP does not read mixed_precision. For DDP write torch_kwargs={'ddp_kwargs': ",
    "sharded": "driver='torch_fsdp' under torchrun trains with DDP: nothing is sharded",
    "driver": "ddp_kwargs has no effect with your own driver object",
}


@pytest.mark.parametrize("name", SAID)
def test_what_has_no_effect_is_named(unpatched: Results, ours: Results, name: str) -> None:
    assert finished(ours[name]) == finished(unpatched[name]) == finished(unpatched["whole"])
    assert SAID[name] in log_text(ours[name][0])
    assert SAID[name] not in log_text(unpatched[name][0]) + log_text(ours["whole"][0])


def test_none_is_nothing(unpatched: Results, ours: Results) -> None:
    assert "AttributeError: 'NoneType' object has no attribute 'items'" in failures(unpatched["none"])[0]
    assert finished(ours["none"]) == finished(ours["none at the top"]) == finished(unpatched["whole"])


def test_a_misspelled_name_is_an_error_at_the_top_too(unpatched: Results, ours: Results) -> None:
    refused = "unexpected keyword argument 'find_unused_parameter'"
    assert refused in failures(unpatched["misspelled"])[0] and refused in failures(ours["misspelled"])[0]
    # Unpatched fastNLP drops the whole dictionary there.
    assert finished(unpatched["misspelled at the top"])
    assert refused in failures(ours["misspelled at the top"])[0]
