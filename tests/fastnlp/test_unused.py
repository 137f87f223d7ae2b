"""The reported failure and its fix, on two ranks through fastNLP's own Trainer or DistTrainer (fastNLP issue 458)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from packaging.version import Version

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import FAILURE, Result, Scenario, failures, finished
from tests.support.scenario import sides

pytestmark = [pytest.mark.patches("fastnlp.unused", "torch.finalize"), pytest.mark.filterwarnings("ignore")]
affected = pytest.mark.skipif(releases.release() < Version("0.7.0"), reason="the flag is this release's own default")
Results = Dict[str, List[Result]]
FINALIZED = "ddpfix trains on, as find_unused_parameters=True does"


def ddp(**keywords: Any) -> Dict[str, Any]:
    """The keywords with which a user of this release says something to DDP."""
    return {"torch_kwargs": {"ddp_kwargs": keywords}} if releases.has_drivers() else keywords


WRAP = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
"""


def scenarios(folder: Path, ddpfix: bool) -> List[Scenario]:
    result = [Scenario("plain"), *(Scenario(name, name) for name in ("whole", "checkpointed", "reentrant"))]
    if releases.release() >= Version("0.7.0"):
        result += [Scenario("given", kwargs=ddp(find_unused_parameters=True))]
    if releases.has_drivers():
        result += [
            Scenario("auto", kwargs={"driver": "auto"}),
            Scenario("static", kwargs=ddp(static_graph=True)),
            Scenario("own", kwargs={"data_device": "cpu", **ddp(static_graph=True)}, before=WRAP),
        ]
    if ddpfix:
        settings = {"off": {"unused": "off"}, "switched": {"torch.finalize": "0"}, "find": {"unused": "find"}}
        result += [Scenario(name, settings=given) for name, given in settings.items()]
        if releases.release() >= Version("0.7.0"):
            result += [Scenario("refused", kwargs=ddp(find_unused_parameters=False))]
    return result


unpatched, ours = sides(launch.train, scenarios, ("unpatched", "ours"))


# By name: the run without ddpfix that it equals, the flag that each DDP was given, and what is said.
WRAPPED = "static_graph=True has no effect: the model is wrapped in DDP already"
SAME: Dict[str, Tuple[str, Any, str]] = {
    "plain": ("given", False, FINALIZED),
    "auto": ("given", False, FINALIZED),
    "find": ("given", True, ""),
    "given": ("given", True, ""),
    "whole": ("whole", False, ""),
    "checkpointed": ("checkpointed", False, ""),
    "reentrant": ("reentrant", False, ""),
    "static": ("static", False, ""),
    "own": ("own", True, WRAPPED),
}


@affected
def test_the_reported_failure(unpatched: Results) -> None:
    for error in (error for name in ("plain", "auto") if name in unpatched for error in failures(unpatched[name])):
        assert FAILURE in error
        assert "did not receive grad for rank" in error
        assert ": 2 3" in error


@affected
@pytest.mark.parametrize("name", SAME)
def test_it_trains_as_by_the_users_own_keywords(unpatched: Results, ours: Results, name: str) -> None:
    if name not in ours:
        pytest.skip("no drivers before 1.0.0")
    reference, flag, said = SAME[name]
    assert finished(ours[name]) == finished(unpatched[reference])
    assert [given["find_unused_parameters"] for result in ours[name] for given in result.ddp] == [flag, flag]
    assert ours[name][0].ddp[0]["static_graph"] == (name == "static")
    assert said in ours[name][0].log
    assert (FINALIZED in ours[name][0].log) == (said == FINALIZED)
    assert all(result.given_stays for result in ours[name])


@affected
@pytest.mark.parametrize("name", ["off", "switched"])
def test_only_the_fix_does_it(ours: Results, name: str) -> None:
    assert all(FAILURE in error for error in failures(ours[name]))


@affected
@pytest.mark.patches("torch.diagnosis")
def test_the_line_of_the_diagnosis_is_what_the_user_gives(ours: Results) -> None:
    """That these keywords cure is shown by ``given``. The rank that fails first ends the others."""
    error = next(error for error in failures(ours["off"]) if "ddpfix: cure" in error)
    assert "in fastNLP, paste this line" in error
    # A message may be recorded on one line, and this is its end.
    (line,) = re.findall(r"(?:Dist)?Trainer\(\.\.\., [^\n]*\)", error)
    assert line.startswith("Trainer(") is releases.has_drivers()
    keywords = eval(line.replace("..., ", ""), {"Trainer": dict, "DistTrainer": dict})
    assert keywords == ddp(find_unused_parameters=True)


def test_older_releases_are_not_affected(unpatched: Results, ours: Results) -> None:
    if releases.release() >= Version("0.7.0"):
        pytest.skip("only where the flag is the release's own default")
    for name in ("plain", "whole"):
        assert finished(unpatched[name]) == finished(ours[name])
        assert unpatched[name][0].ddp == ours[name][0].ddp
        assert unpatched[name][0].ddp[0]["find_unused_parameters"]
    assert ours["plain"][0].places["fastnlp.unused"] == "not-affected"


@affected
def test_the_users_own_false_stays_and_is_reported(ours: Results) -> None:
    assert all(FAILURE in error for error in failures(ours["refused"]))
    assert all(result.ddp[0]["find_unused_parameters"] is False for result in ours["refused"] if not result.hung)
