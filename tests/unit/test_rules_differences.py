"""In what ranks differ: from their counts of forwards, backwards and collectives alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest

from ddpfix.rules import differences, replicas
from ddpfix.rules.facts import TrainingProgress
from ddpfix.rules.no_gradient import causes, names
from ddpfix.rules.no_gradient.causes import Seen
from ddpfix.rules.no_gradient.names import Group
from ddpfix.rules.replicas import Snapshot, Where

A, B, SAVE = "step (train.py:10)", "train.py:20", "save (train.py:30)"


@pytest.mark.parametrize(
    "here, at, there, other_at, found",
    [
        # A save of this rank alone; the other one is ahead at the line where it waits.
        ({SAVE: 1, A: 1}, A, {A: 1, B: 1}, B, (SAVE, 1)),
        # In a loop, both wait at the same line.
        ({SAVE: 1, A: 9}, A, {A: 10}, A, (SAVE, 1)),
        ({SAVE: 2, A: 8}, A, {A: 10}, A, (SAVE, 2)),
        # The other one has ended.
        ({SAVE: 1, A: 10}, A, {A: 10}, "", (SAVE, 1)),
        # This rank still waits where it alone has called: the paragraph has the line already.
        ({SAVE: 1}, SAVE, {A: 1}, A, None),
        # Branches that call at lines of their own, and wait elsewhere.
        ({SAVE: 1, A: 5}, A, {B: 1, A: 5}, A, None),
        # Nothing is different, or one is a step behind.
        ({A: 5}, A, {A: 5}, A, None),
        ({A: 4}, A, {A: 5}, A, None),
        # Two lines are different: none of them is certain.
        ({SAVE: 1, B: 1, A: 1}, A, {A: 3}, A, None),
    ],
)
def test_one_rank_has_called_more(
    here: Dict[str, int], at: str, there: Dict[str, int], other_at: str, found: Optional[Tuple[str, int]]
) -> None:
    assert differences.one_call_more(here, at, there, other_at) == found
    if found is not None:
        assert differences.one_call_more(there, other_at, here, at) is None


PLAIN = TrainingProgress(12, 12)
SKIPPED = "Backward was called 11 times in 12 forwards on rank 1, 12 times in 12 on rank 0: "


@pytest.mark.parametrize(
    "work, told",
    [
        (
            TrainingProgress(12, 11, 1, "train.py:41"),
            f"{SKIPPED}rank 1 skipped one near train.py:41. Skip a batch on all",
        ),
        (TrainingProgress(12, 11, waits=True).ended(), f"{SKIPPED}rank 1 skipped one. "),
        (TrainingProgress(12, 9, 3), "rank 1 skipped 3. "),
        # The backward of its last forward is still to come.
        (TrainingProgress(12, 10, 1), "rank 1 skipped one. "),
        (TrainingProgress(12, 12, 1), "On rank 1 no gradient reached the model after a forward: the loss"),
        (TrainingProgress(12, 12, missed=True), "On rank 1 no gradient reached the model after its last forward"),
    ],
)
def test_ranks_that_do_not_call_backward_equally(work: TrainingProgress, told: str) -> None:
    found = differences.backwards({0: PLAIN, 1: work})
    assert told in found, found


@pytest.mark.parametrize(
    "works",
    [
        # All do the same, or one is a step or a micro-batch ahead.
        {0: PLAIN, 1: PLAIN},
        {0: TrainingProgress(13, 13), 1: PLAIN},
        {0: TrainingProgress(13, 12, waits=True), 1: PLAIN},
        # A forward without a backward in each step, on all ranks.
        {0: TrainingProgress(24, 12, 12), 1: TrainingProgress(24, 12, 12)},
        # One rank makes another forward in each step, for a log.
        {0: TrainingProgress(24, 12, 12), 1: PLAIN},
        {0: TrainingProgress(24, 12, 12), 1: TrainingProgress(13, 13)},
        # Nothing is counted, there or on all ranks.
        {0: PLAIN, 1: TrainingProgress()},
        {0: TrainingProgress(), 1: TrainingProgress()},
        {0: PLAIN},
        # Nobody has had a gradient: ranks are no different.
        {0: TrainingProgress(12, 12, missed=True), 1: TrainingProgress(12, 12, missed=True)},
    ],
)
def test_ranks_that_are_only_in_other_places(works: Dict[int, TrainingProgress]) -> None:
    assert differences.backwards(works) == ""


def test_counts_of_a_common_group_are_compared() -> None:
    assert differences.has_begun_more({"0": 5}, {"0": 4})
    assert not differences.has_begun_more({"0": 4}, {"0": 4}) and not differences.has_begun_more({"0": 3}, {"0": 4})
    # Groups of the one alone, and a rank that tells nothing.
    assert not differences.has_begun_more({"0": 4, "1": 9}, {"0": 4}) and not differences.has_begun_more({"0": 5}, {})


# Replicas that differ.


THERE = Snapshot(3, 5, "names", [7, 8], [1, 2], [[1.0, 2.0], [3.0]], {"lr": "0.1"}, 3)
WHERE = Where(1, 0, "Net", 2, 4)


@pytest.mark.parametrize(
    ("change", "unequal", "is_compared", "apart"),
    [
        ({}, [], True, False),
        ({"sums": [7, 9]}, [], True, False),
        # Of other steps, parameters or gradients nothing is said; but of averages that were not equally many.
        ({"sums": [7, 9], "forwards": 6}, [], False, False),
        ({"sums": [7, 9], "names": "others"}, [], False, False),
        ({"sums": [7, 9], "gradients": [1, 3]}, [1], False, False),
        ({"sums": [7, 9], "gradients": [1, 3], "averaged": 4}, [1], False, True),
        ({"sums": [7, 9], "gradients": [1, 3], "averaged": None}, [1], False, False),
    ],
)
def test_what_two_snapshots_tell(change: Any, unequal: List[int], is_compared: bool, apart: bool) -> None:
    here = THERE._replace(**change)
    assert replicas.unequal(THERE, here) == unequal and replicas.has_averaged_apart(THERE, here) is apart
    assert (replicas.difference(THERE, here) is not None) is is_compared


def test_parameters_and_rates_that_differ_are_named() -> None:
    found = replicas.difference(THERE, THERE._replace(sums=[7, 9], samples=[[1.0, 2.0], [2.5]], rates={"lr": "0.2"}))
    assert found is not None
    unknown = replicas.difference(THERE, THERE._replace(sums=[6, 9], samples=[[1.0, 2.0], [float("nan")]]))
    assert unknown is not None and unknown.most != unknown.most
    line = replicas.describe_divergence(WHERE, found, ["b.weight"], 2, replicas.local_steps(2, "train.py:8"))
    assert line.startswith(
        "rank 1 diverged from rank 0 in Net between steps 2 and 4: 1 of 2 parameters, first b.weight (by 0.5 or more):"
        " b; lr 0.1 there, 0.2 here.\n2 optimizer steps before that used only gradients of forwards under no_sync"
        " (train.py:8), which DDP does not average.\nLeave no_sync"
    )


@pytest.mark.parametrize(("numbers", "told"), [((2, 1), "2 times, rank 0 once"), ((3, 2), "3 times, rank 0 2 times")])
def test_averages_that_were_not_equally_many(numbers: Any, told: str) -> None:
    line = replicas.describe_averages(WHERE, ["b.weight"], 2, numbers)
    assert f"By optimizer step 4 this rank has averaged {told}: their averages mix different steps." in line


@pytest.mark.parametrize(
    ("cause", "place", "told"),
    [
        ("no_sync", "train.py:8", "Its forward ran under no_sync (train.py:8). Leave no_sync"),
        ("no_sync", "", "Its forward ran under no_sync. Leave no_sync"),
        ("accumulate", "train.py:8", "Its forward ran under accumulate (train.py:8). Use a single accumulate"),
        ("require_backward_grad_sync", "a.py:8", "Its forward ran with require_backward_grad_sync=False (a.py:8)"),
        ("backward", "train.py:8", "It ran inside the forward (train.py:8), before DDP was ready"),
        ("", "", "No collective ran between its forward and the step"),
    ],
)
def test_a_model_that_was_never_averaged(cause: str, place: str, told: str) -> None:
    assert replicas.describe_unreduced("Net", 4, 0, cause, place).startswith(
        f"this Net differs from rank 0's: in 4 optimizer steps, DDP never averaged the last backward. {told}"
    )


# Why a parameter got no gradient: the facts of passes, and the cause that follows; no rank is started.


AUX = Group("aux", ["aux.0.weight", "aux.2.weight"], True)
LAYERS = Group("layers", [f"layers.{number}.weight" for number in range(3)], False)
MASK = Group("", ["mask"], False)
LAYER = Group("layers.1", ["layers.1.weight"], True)
BRANCH = "(a branch that was not taken)"
OUTSIDE = "is not part of the loss, and nothing else uses"
LOST = "the loss does not depend on the result (detach(), no_grad(), or dropped)"
SKIPS = "Net skips layers at random (layerdrop 0.5)"


@pytest.mark.parametrize(
    "group, seen, kind, cause",
    [
        (AUX, Seen(1, ran=False, ever=False), causes.NEVER, "aux did not run in the first step"),
        (AUX, Seen(3, ran=False, ever=False), causes.NEVER, "aux did not run in any of the 3 steps so far"),
        (AUX, Seen(4, 4, False, False), causes.NEVER, "aux did not run in any of the 4 passes"),
        (AUX, Seen(3, ran=False, ever=True), causes.BRANCH, f"the 2 steps before used aux, this one did not {BRANCH}"),
        (AUX, Seen(2), causes.BRANCH, f"the step before used aux, this one did not {BRANCH}"),
        (AUX, Seen(4, 3, False, True), causes.BRANCH, f"3 of 4 passes did not use aux {BRANCH}"),
        (AUX, Seen(1, ran=True, ever=True, output="out.x"), causes.OUTSIDE, f"out.x {OUTSIDE} aux"),
        (AUX, Seen(1, ran=True, ever=True), causes.LOST, f"aux ran, but {LOST}"),
        (MASK, Seen(1, ran=True), causes.BESIDE, "mask: not used, although the module that holds it ran"),
        (LAYERS, Seen(1, ran=False, ever=False, skips=SKIPS), causes.SKIPPED, f"{SKIPS}, layers in this step"),
        (LAYERS, Seen(4, 2, False, True, skips=SKIPS), causes.SKIPPED, f"{SKIPS}, layers in 2 of 4 passes"),
        # Not recorded, as with torch.compile.
        (LAYERS, Seen(1, skips=SKIPS), causes.SKIPPED, f"{SKIPS}, layers in this step"),
        (AUX, Seen(1), causes.UNKNOWN, "the graph of the loss does not reach aux"),
        # A layer that ran was not skipped.
        (LAYER, Seen(1, ran=True, skips=SKIPS), causes.LOST, f"layers.1 ran, but {LOST}"),
    ],
)
def test_each_cause(group: Group, seen: Seen, kind: str, cause: str) -> None:
    (found,) = causes.judge([(group, seen)])
    assert (found.finding.kind, found.finding.cause, found.groups) == (kind, cause, [group])


@pytest.mark.parametrize("kind", [causes.REPEATED, causes.HIDDEN, causes.STATIC, causes.TWICE])
def test_an_error_of_ddp_is_told_below_its_message(kind: str) -> None:
    cures = [("paste this line", ["x()"]), ("or not", [])]
    found = causes.finding(kind, 1, "aux got none:\n    aux (w)", ["a", "b"], cures)
    assert (found.kind, found.ranks) == (kind, [1])
    assert found.note == (
        "aux got none:\n    aux (w)\nddpfix: cause: a\nddpfix: cause: b\nddpfix: cure: paste this line:\n    x()"
        "\nddpfix: cure: or not"
    )


def test_groups_of_one_cause_share_a_sentence_and_the_largest_comes_first() -> None:
    never, ran = Seen(1, ran=False, ever=False), Seen(1, ran=True, ever=True)
    seen = [(MASK, ran), *((Group(f"layers.{n}", [f"layers.{n}.weight"], True), never) for n in range(6))]
    first, second = causes.judge(seen)
    assert first.finding.cause == "layers.0, layers.1, layers.2, layers.3 and 2 more did not run in the first step"
    assert len(first.groups) == 6 and second.finding.kind == causes.BESIDE


@pytest.mark.parametrize(
    "own, config, expected",
    [
        ({"layerdrop": 0.5}, {}, "layerdrop 0.5"),
        ({}, {"encoder_layerdrop": 0.25}, "encoder_layerdrop 0.25"),
        ({"stochastic_depth_rate": [0, 0.1]}, {}, "stochastic_depth_rate 0.1"),
        ({"layerdrop": 0.0}, {"layerdrop": True}, ""),
        ({"stochastic_depth": "random"}, {}, ""),
        ({"layerdrop": 0.5, "training": False}, {}, ""),
    ],
)
@pytest.mark.parametrize("held", [["layers.1.weight"], ["layers.0.weight", "layers.1.weight"]])
def test_the_rate_of_a_module_above(
    own: Dict[str, Any], config: Dict[str, Any], expected: str, held: List[str]
) -> None:
    above = SimpleNamespace(**{"training": True, **own}, config=SimpleNamespace(**config))
    modules = {"": SimpleNamespace(training=True), "layers": above, "layers.1": SimpleNamespace(training=True)}
    whole = causes.skips(modules, Group("layers" if len(held) > 1 else "layers.1", held, True))
    assert whole == (f"SimpleNamespace skips layers at random ({expected})" if expected else "")
    assert causes.skips(modules, Group("layers", [*held, "layers.norm"], False)) == "", "no numbered layer"


@pytest.mark.parametrize(
    "held, expected",
    [
        (["a.weight", "a.bias"], "\n    a (weight, bias)"),
        (["b.0.w", "b.1.w", "b.2.w", "b.4.w"], "\n    b.0 to 2, 4, each (w)"),
        (["b.0.w", "b.1.w", "b.4.w"], "\n    b.0, 1, 4, each (w)"),
        (["a.weight"], "\n    a (weight)"),
        ([f"d.{name}" for name in "vwxyz"], "\n    d (all 5 parameters)"),
        (["c"], "\n    the model (c)"),
    ],
)
def test_names_are_collapsed_by_module(held: Sequence[str], expected: str) -> None:
    every = ["a.weight", "a.bias", *(f"b.{number}.w" for number in range(6)), "c", *(f"d.{name}" for name in "vwxyz")]
    assert names.listed(names.collapsed(held, every)) == expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("layers.3", "model.layers[3]"),
        ("0.linear", "model.get_submodule('0.linear')"),
        ("heads.en-us", "model.get_submodule('heads.en-us')"),
    ],
)
def test_a_module_is_named_as_python_spells_it(name: str, expected: str) -> None:
    assert names.attribute(Group(name, [f"{name}.weight"], True)) == expected
