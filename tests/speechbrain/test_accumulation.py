"""All micro-batches count, clipping acts, and no_sync is restored: on real releases, against torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, List

import pytest
import torch

from ddpfix.patching.site import Site
from tests.speechbrain import launch, tiny_runs
from tests.speechbrain.tiny_runs import Side, as_by_hand, by_hand, error, run, since

MIXED = since("0.5.12", "1.0.0")
HAS_FACTOR = since("0.5.12")
CLIPS_TOO_EARLY = since("0.5.15", "1.0.0")
# Without a GPU, autocast for CUDA does nothing; from 0.5.14 on it is bfloat16 on the CPU.
MIXED_ERROR = 1e-6 if since("0.5.12", "0.5.14") else 2e-2
WHOLE = [[(0, 100), (1, 101), (2, 102)], [(3, 103), (4, 104), (5, 105)]]
ONE_BY_ONE = [[(0, 100)], [(1, 101)], [(2, 102)]]
CLIPPED = {"lr": 1.0, "clip": 0.001}


def scenarios(folder: Path) -> List[launch.Scenario]:
    plans = [run(folder, "clip", ["--max_grad_norm=0.001"], lr=1.0)]
    if HAS_FACTOR:
        three = "--grad_accumulation_factor=3"
        plans += [run(folder, "clip_three", [three, "--max_grad_norm=0.001"], counts="6,6", lr=1.0)]
    if MIXED:
        plans += [run(folder, "mixed", [three, "--auto_mix_prec"], counts="6,6")]
        plans += [run(folder, "clip_mixed", ["--auto_mix_prec", "--max_grad_norm=0.001"], lr=1.0)]
    if since("1.0.0"):
        plans += [run(folder, "skipped", [three], counts="6,6", failing="1:2")]
    return plans


unpatched, patched = tiny_runs.sides(lambda folder, ddpfix: scenarios(folder))


@pytest.mark.skipif(not MIXED, reason="no auto_mix_prec with accumulation")
def test_unpatched_counts_the_last_micro_batch_only_under_mixed_precision(unpatched: Side) -> None:
    where, runs = unpatched
    assert tiny_runs.well(runs["mixed"])
    last_only = [[(None, None), (None, None), step[-1]] for step in WHOLE]
    wrong = error(where, "mixed", by_hand(last_only))
    if since("0.5.12", "0.5.14"):
        assert wrong < 1e-6 and error(where, "mixed", by_hand(WHOLE)) > 0.01
    else:
        assert wrong > MIXED_ERROR and error(where, "mixed", by_hand(WHOLE)) < MIXED_ERROR


@pytest.mark.patches("speechbrain.accumulation")
@pytest.mark.skipif(not MIXED, reason="no auto_mix_prec with accumulation")
def test_every_micro_batch_counts_under_mixed_precision(patched: Side) -> None:
    as_by_hand(patched, "mixed", WHOLE, MIXED_ERROR)


def test_unpatched_clips_nothing_where_it_clips_before_backward(unpatched: Side) -> None:
    where, runs = unpatched
    assert tiny_runs.well(runs["clip"])
    clipped, free = by_hand(ONE_BY_ONE, 1.0, 0.001), by_hand(ONE_BY_ONE, 1.0, float("inf"))
    if CLIPS_TOO_EARLY:
        moved = max(float((a - b).abs().max()) for a, b in zip(free, tiny_runs.weights()))
        assert error(where, "clip", free) < 1e-5 * moved and error(where, "clip", clipped) > 1
    else:
        assert error(where, "clip", clipped) < 1e-6


@pytest.mark.patches("speechbrain.clipping")
def test_clipping_acts_on_the_gradients_of_the_step(patched: Side) -> None:
    as_by_hand(patched, "clip", ONE_BY_ONE, **CLIPPED)
    if HAS_FACTOR:
        as_by_hand(patched, "clip_three", WHOLE, **CLIPPED)
    if MIXED:
        as_by_hand(patched, "clip_mixed", ONE_BY_ONE, 1e-3 * MIXED_ERROR + 1e-6, **CLIPPED)


@pytest.mark.patches("speechbrain.finite")
@pytest.mark.skipif(not since("1.0.0"), reason="forward is outside of no_sync, or there is none")
def test_skipping_a_micro_batch_on_one_rank_keeps_ranks_equal(unpatched: Side, patched: Side) -> None:
    first, second = unpatched[1]["skipped"]
    assert first.hung or first.steps != second.steps
    as_by_hand(patched, "skipped", [[(0, 100), (1, None), (2, 102)], WHOLE[1]])


@pytest.fixture
def brain() -> Iterator[Any]:
    """A Brain in this process; what a test puts on the class is taken away again."""
    from speechbrain.core import Brain

    had = dict(vars(Brain))
    yield Brain(modules={"first": torch.nn.Linear(2, 2), "second": torch.nn.Linear(2, 2)}, run_opts={"device": "cpu"})
    assert dict(vars(Brain)) == had


@pytest.mark.patches("speechbrain.no_sync")
@pytest.mark.skipif(not since("0.5.13"), reason="there is no no_sync")
def test_no_sync_restores_what_was_there_after_an_exception(brain: Any) -> None:
    import speechbrain.core
    from ddpfix.patches.speechbrain import no_sync

    def left() -> List[bool]:
        for module in brain.modules.values():
            module.require_backward_grad_sync = True
        with pytest.raises(MemoryError), brain.no_sync():
            assert [module.require_backward_grad_sync for module in brain.modules.values()] == [False, False]
            raise MemoryError
        return [module.require_backward_grad_sync for module in brain.modules.values()]

    assert left() == [False, False]
    site = Site("speechbrain.no_sync")
    no_sync.restored(site, speechbrain.core, speechbrain.core.Brain)
    try:
        assert left() == [True, True]
        with brain.no_sync(False):
            assert all(module.require_backward_grad_sync for module in brain.modules.values())
    finally:
        assert site.undo() == []
    assert left() == [False, False]
