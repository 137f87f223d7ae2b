"""The reported failure and its fix, on two ranks through fastNLP's own Trainer or DistTrainer (fastNLP issue 458)."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from packaging.version import Version

from tests.fastnlp import launch, releases
from tests.fastnlp.launch import FAILURE, Result, Scenario

pytestmark = [pytest.mark.patches("fastnlp.unused"), pytest.mark.filterwarnings("ignore")]
affected = pytest.mark.skipif(releases.release() < Version("0.7.0"), reason="the flag is this release's own default")
drivers = pytest.mark.skipif(not releases.has_drivers(), reason="no drivers before 1.0.0")
Results = Dict[str, List[Result]]
STAYS = "find_unused_parameters=False is your own setting and stays"
LATE = {"unused": "late"}
FINALIZED = "ddpfix trains on without them, as find_unused_parameters=True does"


def ddp(**keywords: Any) -> Dict[str, Any]:
    """The keywords with which a user of this release says something to DDP."""
    return {"torch_kwargs": {"ddp_kwargs": keywords}} if releases.has_drivers() else keywords


def scenarios() -> List[Scenario]:
    """The runs of both launches."""
    result = [
        Scenario("plain"),
        Scenario("whole", "whole"),
        Scenario("checkpointed", "checkpointed"),
        Scenario("reentrant", "reentrant"),
    ]
    if releases.release() >= Version("0.7.0"):
        result += [Scenario("given", kwargs=ddp(find_unused_parameters=True))]
    if releases.has_drivers():
        result += [
            Scenario("auto", kwargs={"driver": "auto"}),
            Scenario("static", kwargs=ddp(static_graph=True)),
            Scenario("own", kwargs={"data_device": "cpu", **ddp(static_graph=True)}, before=WRAP),
        ]
    return result


WRAP = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
"""


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch.train(scenarios(), tmp_path_factory.mktemp("unpatched"), ddpfix=False)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Results:
    more = [
        Scenario("off", settings={"unused": "off"}),
        Scenario("switched", settings={"fastnlp.unused": "0", "torch.finalize": "0"}),
        Scenario("find", settings={"unused": "find"}),
        Scenario("unhelped", "checkpointed", settings={"torch.reentrant": "0"}),
    ]
    if releases.release() >= Version("0.7.0"):
        more += [Scenario("late", settings=LATE)]
        more += [Scenario("late refused", kwargs=ddp(find_unused_parameters=False), settings=LATE)]
        more += [Scenario("late given", kwargs=ddp(find_unused_parameters=True), settings=LATE)]
        more += [Scenario("refused", kwargs=ddp(find_unused_parameters=False))]
        more += [Scenario("nothing", kwargs=ddp(find_unused_parameters=None))]
    return launch.train([*scenarios(), *more], tmp_path_factory.mktemp("ours"), ddpfix=True)


def failures(results: List[Result]) -> List[str]:
    """The errors of the ranks that could say one; from 1.0.0 on the failing rank ends the other."""
    messages = [result.failure() for result in results if not result.hung or result.failure()]
    assert messages, results[0].log
    return messages


def finished(results: List[Result]) -> List[str]:
    """The steps of a run that came to its end, the same on both ranks."""
    assert [result.error for result in results] == [None, None], results[0].log + results[1].log
    assert [result.hung for result in results] == [False, False]
    assert results[0].steps == results[1].steps
    assert len(results[0].steps) == 4
    return results[0].steps


@affected
def test_the_reported_failure(unpatched: Results) -> None:
    for error in failures(unpatched["plain"]):
        assert FAILURE in error
        assert "did not receive grad for rank" in error
        assert ": 2 3" in error


@affected
def test_the_fix_equals_the_users_own_flag(unpatched: Results, ours: Results) -> None:
    assert finished(ours["plain"]) == finished(unpatched["given"])
    assert [settings["find_unused_parameters"] for settings in ours["plain"][0].ddp] == [True]
    assert "find_unused_parameters=True, as in fastNLP up to 0.6.0" in ours["plain"][0].log


@affected
@pytest.mark.parametrize("name", ["off", "switched"])
def test_only_the_fix_does_it(ours: Results, name: str) -> None:
    assert all(FAILURE in error for error in failures(ours[name]))


def test_older_releases_are_not_affected(unpatched: Results, ours: Results) -> None:
    if releases.release() >= Version("0.7.0"):
        pytest.skip("only where the flag is the release's own default")
    assert finished(unpatched["plain"]) == finished(ours["plain"])
    assert unpatched["plain"][0].ddp == ours["plain"][0].ddp
    assert unpatched["plain"][0].ddp[0]["find_unused_parameters"]
    assert ours["plain"][0].places["fastnlp.unused"] == "not-affected"


@affected
def test_the_users_own_false_stays_and_is_reported(ours: Results) -> None:
    assert all(FAILURE in error for error in failures(ours["refused"]))
    assert all(result.ddp[0]["find_unused_parameters"] is False for result in ours["refused"] if not result.hung)
    assert STAYS in ours["refused"][0].log
    assert STAYS not in ours["plain"][0].log


@affected
def test_none_says_nothing(unpatched: Results, ours: Results) -> None:
    assert finished(ours["nothing"]) == finished(unpatched["given"])


@affected
def test_what_was_given_is_not_changed(ours: Results) -> None:
    assert all(result.given_stays for name in ("given", "nothing", "plain") for result in ours[name])


def test_a_model_without_unused_parameters_trains_the_same(unpatched: Results, ours: Results) -> None:
    assert finished(ours["whole"]) == finished(unpatched["whole"])


@affected
def test_asking_for_it_in_general_comes_to_the_same(unpatched: Results, ours: Results) -> None:
    assert finished(ours["find"]) == finished(unpatched["given"])


@drivers
def test_the_driver_may_be_chosen_by_fastnlp(unpatched: Results, ours: Results) -> None:
    assert all(FAILURE in error for error in failures(unpatched["auto"]))
    assert finished(ours["auto"]) == finished(unpatched["given"])


@drivers
def test_a_static_graph_of_the_users_stays(unpatched: Results, ours: Results) -> None:
    assert finished(ours["static"]) == finished(unpatched["static"])
    expected = {"find_unused_parameters": False, "static_graph": True}
    assert expected.items() <= ours["static"][0].ddp[0].items()


@drivers
def test_a_model_that_the_user_wrapped(unpatched: Results, ours: Results) -> None:
    assert finished(ours["own"]) == finished(unpatched["own"])
    assert len(ours["own"][0].ddp) == 1
    assert "static_graph=True has no effect: the model is wrapped in DDP already" in ours["own"][0].log
    assert "static_graph" not in unpatched["own"][0].log


@affected
@pytest.mark.parametrize("name", ["checkpointed", "reentrant"])
def test_activation_checkpointing_goes_on_to_train(unpatched: Results, ours: Results, name: str) -> None:
    assert finished(ours[name]) == finished(unpatched[name])
    assert ours[name][0].ddp[0]["find_unused_parameters"]
    assert "activation checkpointing is non-reentrant in this model" in ours[name][0].log


@affected
def test_checkpointing_needs_that_help(ours: Results) -> None:
    assert all("Expected to mark a variable ready only once" in error for error in failures(ours["unhelped"]))


def flags(results: List[Result]) -> List[bool]:
    """What each DDP of each rank was given."""
    return [given["find_unused_parameters"] for result in results for given in result.ddp]


@affected
@pytest.mark.parametrize("name", ["late", "late refused"])
def test_finalizing_after_backward_needs_no_flag(unpatched: Results, ours: Results, name: str) -> None:
    # SGD alone: a parameter that no rank used stays, whether its gradient is None or zero.
    assert finished(ours[name]) == finished(unpatched["given"])
    assert flags(ours[name]) == [False, False]
    assert FINALIZED in ours[name][0].log
    assert FINALIZED not in ours["plain"][0].log


@affected
def test_the_users_own_true_stays_under_late(unpatched: Results, ours: Results) -> None:
    assert finished(ours["late given"]) == finished(unpatched["given"])
    assert flags(ours["late given"]) == [True, True]
    assert FINALIZED not in ours["late given"][0].log
