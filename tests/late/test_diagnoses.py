"""Two errors of DDP: parameters by name, ranks, the cause, and the line; with that line the same program trains."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

import pytest
from ddpfix.patches.torch.internals import reducer

from tests.late import diagnosed
from tests.late.launch import Ranks, Scenario, ends, steps

pytestmark = pytest.mark.patches("torch.diagnosis")
UNFINISHED = "Expected to have finished reduction in the prior iteration"
TWICE = "Expected to mark a variable ready only once"
FIND = "DistributedDataParallel(model, find_unused_parameters=True)"
DO_NOT_FIND = "DistributedDataParallel(model, find_unused_parameters=False)"
NOT_STATIC = "DistributedDataParallel(model, find_unused_parameters=True, static_graph=False)"
NOT_REENTRANT = "torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)"
PREPARE = "model.reducer.prepare_for_backward([loss])"
SUM = "(first_loss + second_loss).backward()"
AUX = "aux (0.weight, 0.bias, 2.weight, 2.bias)"
LAYER = "layers.1 (weight, bias)"
OFF = {"unused": "off", "torch_reentrant": "0"}


class Expected(NamedTuple):
    """What the diagnosis of one program says: a regular expression of the cause, the lines to paste, and more."""

    cause: str
    lines: Sequence[str]
    names: str = AUX  # the parameters, as they are listed
    error: str = UNFINISHED  # torch's
    step: Optional[int] = 1  # the step in which it went wrong; 0 for one of several, None where it is not said
    trains: Sequence[Sequence[str]] = ()  # the lines with which the program trains; all of them by default


FREEZE = "model.aux.requires_grad_(False)"
OUTSIDE = r"output\['extra'\] is not part of the loss"
HIDDEN = r"a reentrant checkpoint hides layers.2 from find_unused_parameters=True"
WITHIN = r"the program prepares DDP inside the wrapped model's forward without the loss"
STATIC = r"static_graph=True expects the same parameters in each step, and the first one used layers.1"
QUICK = {
    "never": Expected(r"aux did not run in the first step", [FREEZE, FIND], trains=[[FREEZE], [FIND]]),
    "outside": Expected(OUTSIDE + ", and nothing else uses aux", [FIND]),
    "reentrant_twice": Expected(r"two reentrant checkpoints use layers.1,", [NOT_REENTRANT], "layers.1.", TWICE),
}
MORE = {
    "layerdrop": Expected(r"Dropping skips layers at random \(layerdrop 0.5\), layers\.", [FIND], "layers."),
    "dropped": Expected(OUTSIDE, [FIND]),
    "lost": Expected(r"aux ran, but the loss does not depend on the result", [FIND]),
    "unused_and_reentrant": Expected(
        r"aux did not run", [FREEZE, FIND, NOT_REENTRANT], trains=[[FREEZE], [FIND, NOT_REENTRANT]]
    ),
    "reentrant_and_flag": Expected(HIDDEN, [NOT_REENTRANT], "layers.2.", TWICE),
    "outside_forward": Expected(r"the loss uses aux.2.bias outside the wrapped", [DO_NOT_FIND], "aux.2.", TWICE),
    # No output of the wrapper shows where a step begins.
    "within": Expected(
        r"the graph of the loss does not reach net.aux", [FIND, PREPARE], "net.aux (0.weight,", step=None
    ),
    "within_with_the_flag": Expected(WITHIN, [PREPARE], "net.", TWICE, step=None),
    "two_forwards": Expected(r"2 forwards before one backward", [DO_NOT_FIND], "layers.", TWICE),
    "two_backwards": Expected(r"backward 2 of this step reaches it", [SUM], "head.", TWICE),
    "static_less": Expected(STATIC, [NOT_STATIC], LAYER, step=3),
}
# The ranks find different things.
DISAGREE = ("one_rank", "each_its_own")
ALL = {**QUICK, **MORE}
# Those that the setting trains.
UNUSED = [name for name, each in ALL.items() if each.error == UNFINISHED and each.lines != [NOT_STATIC]]
# Left to cells and nox -s rest.
LONG = pytest.mark.sampled(inside=False, cells=True)


def scenario(key: str, name: str, settings: Optional[Dict[str, str]] = None, lines: Sequence[str] = ()) -> Scenario:
    """A program of :mod:`tests.late.diagnosed`, with the lines that it is to have."""
    environ = {"TEST_LINES": json.dumps(list(lines))}
    return Scenario(key, function=f"diagnosed:{name}", settings=settings, environ=environ, timeout=20, stays=8)


def lines_of(error: str) -> List[str]:
    """The lines to paste, out of the message."""
    cures = error[error.index("\nddpfix: cure") :].split("\n")
    return [line.strip() for line in cures if line.startswith("    ")]


def check(outcomes: Dict[str, Ranks], name: str, expected: Expected) -> None:
    plain, found = ends(outcomes[f"plain-{name}"]), ends(outcomes[name])
    for rank, (alone, error) in enumerate(zip(plain, found)):
        assert expected.error in alone and "ddpfix" not in alone, outcomes[f"plain-{name}"][rank]
        # Whoever searches for torch's error finds it.
        assert error.startswith(alone), (alone, error)
        own = error[error.index("\nddpfix: ") :]
        assert expected.names in own, own
        assert re.search(rf"ddpfix: cause: .*{expected.cause}", own), own
        assert lines_of(own) == list(expected.lines), own
        assert expected.step is None or f"on rank {rank} in step {expected.step or ''}" in own, own
        assert "the same on all 2 ranks" in own, own


def check_trains(outcomes: Dict[str, Ranks], name: str) -> None:
    assert steps(outcomes[name], "done") == [diagnosed.STEPS] * 2
    one, other = steps(outcomes[name], "weights")
    assert one == pytest.approx(other, abs=1e-6)


def plans(folder: Path) -> List[Scenario]:
    """Programs as they are, and again with the lines that their errors give."""
    plans = [scenario(f"plain-{name}", name) for name in ALL]
    plans += [scenario(name, name, OFF) for name in (*ALL, *DISAGREE)]
    for name, expected in ALL.items():
        for number, chosen in enumerate(expected.trains or [expected.lines]):
            assert set(chosen) <= set(expected.lines)
            pasted = [line for line in expected.lines if line in chosen]
            # Without the flag ddpfix does what is left, as it does by default.
            plans.append(scenario(f"{name}-{number}", name, {} if pasted == [DO_NOT_FIND] else OFF, pasted))
    plans += [scenario(f"{name}-0", name, OFF, [FIND]) for name in DISAGREE]
    plans += [scenario(f"late-{name}", name, {"unused": "late"}) for name in UNUSED]
    return [*plans, scenario("explicit", "explicit_false", {})]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=LONG) for name in MORE)])
def test_each_error_is_explained_and_with_its_line_the_program_trains(outcomes: Dict[str, Ranks], name: str) -> None:
    check(outcomes, name, ALL[name])
    for number in range(len(ALL[name].trains) or 1):
        check_trains(outcomes, f"{name}-{number}")


@LONG
@pytest.mark.parametrize("name", DISAGREE)
def test_ranks_that_disagree_are_no_reason_to_freeze(outcomes: Dict[str, Ranks], name: str) -> None:
    error = ends(outcomes[name])[0]
    assert error.startswith(f"RuntimeError: {UNFINISHED}") and LAYER in error, error
    assert "not the same on all ranks" in error, error
    # Frozen on one rank alone, it would be another model there.
    assert lines_of(error) == [FIND]
    check_trains(outcomes, f"{name}-0")


@LONG
@pytest.mark.parametrize("name", [name for name in UNUSED if reducer.AT_ANY_TIME or PREPARE not in ALL[name].lines])
def test_without_an_edit_the_setting_trains(outcomes: Dict[str, Ranks], name: str) -> None:
    check_trains(outcomes, f"late-{name}")


@LONG
def test_what_is_left_to_torch_by_the_user_is_explained(outcomes: Dict[str, Ranks]) -> None:
    for error in ends(outcomes["explicit"]):
        assert UNFINISHED in error and "ddpfix: cause: " in error and lines_of(error)[-1] == FIND, error
