"""The reported failure and its cure, on two ranks through fastNLP's own Trainer or DistTrainer (fastNLP issue 458)."""

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
SAID = "find_unused_parameters=False is your own setting and stays"
LATE = {"unused": "late"}
CLOSED = "DDP's reduction is finalized after each backward"


def ddp(**keywords: Any) -> Dict[str, Any]:
    """The keywords with which a user of this release says something to DDP."""
    return {"torch_kwargs": {"ddp_kwargs": keywords}} if releases.has_drivers() else keywords


def scenarios() -> List[Scenario]:
    """The runs of both launches."""
    found = [
        Scenario("plain"),
        Scenario("whole", "whole"),
        Scenario("checkpointed", "checkpointed"),
        Scenario("reentrant", "reentrant"),
    ]
    if releases.release() >= Version("0.7.0"):
        found += [Scenario("told", kwargs=ddp(find_unused_parameters=True))]
    if releases.has_drivers():
        found += [
            Scenario("auto", kwargs={"driver": "auto"}),
            Scenario("static", kwargs=ddp(static_graph=True)),
            Scenario("own", kwargs={"data_device": "cpu", **ddp(static_graph=True)}, before=WRAP),
        ]
    return found


WRAP = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch.train(scenarios(), tmp_path_factory.mktemp("stock"), ddpfix=False)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Results:
    more = [
        Scenario("off", settings={"unused": "off"}),
        Scenario("switched", settings={"fastnlp.unused": "0", "torch.late": "0"}),
        Scenario("find", settings={"unused": "find"}),
        Scenario("unhelped", "checkpointed", settings={"torch.reentrant": "0"}),
    ]
    if releases.release() >= Version("0.7.0"):
        more += [Scenario("late", settings=LATE)]
        more += [Scenario("late refused", kwargs=ddp(find_unused_parameters=False), settings=LATE)]
        more += [Scenario("late told", kwargs=ddp(find_unused_parameters=True), settings=LATE)]
        more += [Scenario("refused", kwargs=ddp(find_unused_parameters=False))]
        more += [Scenario("nothing", kwargs=ddp(find_unused_parameters=None))]
    return launch.train([*scenarios(), *more], tmp_path_factory.mktemp("ours"), ddpfix=True)


def failures(results: List[Result]) -> List[str]:
    """The errors of the ranks that could say one; from 1.0.0 on the failing rank ends the other."""
    found = [result.failure() for result in results if not result.hung or result.failure()]
    assert found, results[0].log
    return found


def finished(results: List[Result]) -> List[str]:
    """The steps of a run that came to its end, the same on both ranks."""
    assert [result.error for result in results] == [None, None], results[0].log + results[1].log
    assert [result.hung for result in results] == [False, False]
    assert results[0].steps == results[1].steps
    assert len(results[0].steps) == 4
    return results[0].steps


@affected
def test_the_reported_failure(stock: Results) -> None:
    for error in failures(stock["plain"]):
        assert FAILURE in error
        assert "did not receive grad for rank" in error
        assert ": 2 3" in error


@affected
def test_is_cured_as_the_user_would_have(stock: Results, ours: Results) -> None:
    assert finished(ours["plain"]) == finished(stock["told"])
    assert [found["find_unused_parameters"] for found in ours["plain"][0].ddp] == [True]
    assert "find_unused_parameters=True, as in fastNLP up to 0.6.0" in ours["plain"][0].log


@affected
@pytest.mark.parametrize("name", ["off", "switched"])
def test_only_the_cure_does_it(ours: Results, name: str) -> None:
    assert all(FAILURE in error for error in failures(ours[name]))


def test_older_releases_are_not_affected(stock: Results, ours: Results) -> None:
    if releases.release() >= Version("0.7.0"):
        pytest.skip("only where the flag is the release's own default")
    assert finished(stock["plain"]) == finished(ours["plain"])
    assert stock["plain"][0].ddp == ours["plain"][0].ddp
    assert stock["plain"][0].ddp[0]["find_unused_parameters"]
    assert ours["plain"][0].places["fastnlp.unused"] == "not-affected"


@affected
def test_the_users_own_false_stays_and_is_reported(ours: Results) -> None:
    assert all(FAILURE in error for error in failures(ours["refused"]))
    assert all(result.ddp[0]["find_unused_parameters"] is False for result in ours["refused"] if not result.hung)
    assert SAID in ours["refused"][0].log
    assert SAID not in ours["plain"][0].log


@affected
def test_none_says_nothing(stock: Results, ours: Results) -> None:
    assert finished(ours["nothing"]) == finished(stock["told"])


@affected
def test_what_was_given_is_not_changed(ours: Results) -> None:
    assert all(result.given_stays for name in ("told", "nothing", "plain") for result in ours[name])


def test_a_model_without_unused_parameters_trains_the_same(stock: Results, ours: Results) -> None:
    assert finished(ours["whole"]) == finished(stock["whole"])


@affected
def test_asking_for_it_in_general_comes_to_the_same(stock: Results, ours: Results) -> None:
    assert finished(ours["find"]) == finished(stock["told"])


@drivers
def test_the_driver_may_be_chosen_by_fastnlp(stock: Results, ours: Results) -> None:
    assert all(FAILURE in error for error in failures(stock["auto"]))
    assert finished(ours["auto"]) == finished(stock["told"])


@drivers
def test_a_static_graph_of_the_users_stays(stock: Results, ours: Results) -> None:
    assert finished(ours["static"]) == finished(stock["static"])
    expected = {"find_unused_parameters": False, "static_graph": True}
    assert expected.items() <= ours["static"][0].ddp[0].items()


@drivers
def test_a_model_that_the_user_wrapped(stock: Results, ours: Results) -> None:
    assert finished(ours["own"]) == finished(stock["own"])
    assert len(ours["own"][0].ddp) == 1
    assert "static_graph=True has no effect: the model is wrapped in DDP already" in ours["own"][0].log
    assert "static_graph" not in stock["own"][0].log


@affected
@pytest.mark.parametrize("name", ["checkpointed", "reentrant"])
def test_activation_checkpointing_goes_on_to_train(stock: Results, ours: Results, name: str) -> None:
    assert finished(ours[name]) == finished(stock[name])
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
def test_closing_after_backward_needs_no_flag(stock: Results, ours: Results, name: str) -> None:
    # SGD alone: a parameter that no rank used stays, whether its gradient is None or zero.
    assert finished(ours[name]) == finished(stock["told"])
    assert flags(ours[name]) == [False, False]
    assert CLOSED in ours[name][0].log
    assert CLOSED not in ours["plain"][0].log


@affected
def test_the_users_own_true_stays_under_late(stock: Results, ours: Results) -> None:
    assert finished(ours["late told"]) == finished(stock["told"])
    assert flags(ours["late told"]) == [True, True]
    assert CLOSED not in ours["late told"][0].log
