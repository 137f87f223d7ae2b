"""Ranks with unequal numbers of batches end an epoch together: on real releases, and on their loaders alone."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, List

import pytest

from ddpfix.patching.site import Site
from ddpfix.uneven.loader import Held
from tests.speechbrain import launch, tiny_recipe, tiny_runs
from tests.speechbrain.tiny_runs import Side, as_by_hand, run, since

pytestmark = pytest.mark.patches("speechbrain.uneven")
# Collectives from Python: the tiny recipe has no other ones (DDP reduces gradients in C++).
COUNT = """
import torch
original, recorder.record["reduced"] = torch.distributed.all_reduce, 0
def all_reduce(*args, **kwargs):
    recorder.record["reduced"] += 1
    return original(*args, **kwargs)
torch.distributed.all_reduce = all_reduce
"""
PADDED = [[(0, 100)], [(1, 101)], [(2, 102)], [(3, 100)], [(4, 101)]]


def scenarios(folder: Path, ddpfix: bool) -> List[launch.Scenario]:
    stop = {"uneven": "stop"}
    if not ddpfix:
        # With settings, ddpfix is switched on late, in ranks that have imported SpeechBrain without it.
        return [
            run(folder, "loader", counts="5,3", timeout=6),
            run(folder, "stop", counts="5,3", number_of_epochs=2, settings=stop),
            run(folder, "stop_iterable", kind="iterable", counts="5,3", settings=stop),
        ]
    plans = [
        run(folder, "equal", before=COUNT),
        run(folder, "loader", counts="5,3", before=COUNT, number_of_epochs=2),
        run(folder, "debug", ["--debug"], counts="5,1"),
        run(folder, "iterable", kind="iterable", counts="5,3", before=COUNT, number_of_epochs=2),
        run(folder, "iterable_equal", kind="iterable", before=COUNT),
        run(folder, "once", kind="once", counts="3,5"),
        run(folder, "nothing", counts="3,0"),
        run(folder, "nothing_iterable", kind="iterable", counts="3,0"),
    ]
    return [*plans, *([run(folder, "limit", ["--optimizer_step_limit=4"], counts="6,3")] if since("0.5.12") else [])]


late, patched = tiny_runs.sides(scenarios, ("late", "patched"))


@pytest.mark.parametrize("name", ["loader", "iterable"])
def test_the_shorter_rank_reads_some_again_where_the_release_hangs(late: Side, patched: Side, name: str) -> None:
    assert any(result.hung for result in late[1]["loader"])
    first, second = patched[1][name]
    as_by_hand(patched, name, PADDED * 2)
    assert first.batches == [[str(number)] for number in [*range(5)] * 2]
    assert second.batches == [[str(100 + number)] for number in [0, 1, 2, 0, 1] * 2]
    assert first.log.count("2 batches are read again" if name == "loader" else "2 batches were read again") == 2


@pytest.mark.parametrize("name", ["stop", "stop_iterable"])
def test_all_stop_at_the_shortest(late: Side, name: str) -> None:
    epochs = 2 if name == "stop" else 1
    as_by_hand(late, name, PADDED[:3] * epochs)
    assert late[1][name][0].log.count("left out") == epochs


def test_ranks_ask_each_other_once_an_epoch(patched: Side) -> None:
    runs = patched[1]
    assert [result.notes["reduced"] for result in runs["equal"]] == [1, 1]
    assert [result.notes["reduced"] for result in runs["loader"]] == [2, 2]


def test_only_without_a_length_they_agree_ahead(patched: Side) -> None:
    runs = patched[1]
    # Once an epoch, once for each batch fetched ahead and for the end, once where the shorter rank begins again.
    assert [result.notes["reduced"] for result in runs["iterable"]] == [2 * (1 + 5 + 1 + 1)] * 2
    assert [result.notes["reduced"] for result in runs["iterable_equal"]] == [1 + 3 + 1] * 2
    assert "batches" not in "".join(line for line in runs["iterable_equal"][0].log.splitlines() if "ddpfix" in line)


def test_a_stream_that_can_be_read_once_ends_the_epoch_on_all_ranks(patched: Side) -> None:
    as_by_hand(patched, "once", PADDED[:3])


@pytest.mark.parametrize("name", ["nothing", "nothing_iterable"])
def test_a_rank_without_data_is_an_error_on_all_ranks(patched: Side, name: str) -> None:
    for result in patched[1][name]:
        assert result.error is not None and "1 of 2 ranks have no batch" in result.error


def test_debug_and_step_limits_end_all_ranks(patched: Side) -> None:
    runs = patched[1]
    assert tiny_runs.alike(runs["debug"]) and len(runs["debug"][0].steps) == 2
    if since("0.5.12"):
        assert tiny_runs.alike(runs["limit"]) and len(runs["limit"][0].steps) == 4


def loaded(count: int, **arguments: Any) -> Any:
    from speechbrain.dataio.dataloader import SaveableDataLoader

    return SaveableDataLoader(list(range(count)), batch_size=1, collate_fn=tiny_recipe.Batch, **arguments)


def ids(loader: Any) -> List[str]:
    return [name for batch in loader for name in batch.id]


def test_a_resumed_loader_counts_what_is_left_and_keeps_its_position() -> None:
    from ddpfix.patches.speechbrain import uneven

    loader = loaded(3)
    assert uneven.remaining(loader) == (3, 3)
    loader._speechbrain_recovery_skip_to = 2
    assert uneven.remaining(loader) == (1, 3)
    assert ids(uneven.counted(3, loader)) == ["2", "0", "1"]
    # What a checkpoint in the midst of the epoch would save: as far as the first reading came.
    assert loader._speechbrain_iterator._num_yielded == 3
    assert ids(uneven.counted(2, loader)) == ["0", "1"]


def test_a_looped_loader_goes_on_in_its_data_and_begins_epochs_anew() -> None:
    from ddpfix.patches.speechbrain import uneven
    from speechbrain.dataio.dataloader import LoopedLoader

    loader = LoopedLoader(loaded(7), 3, batchsize_fn=None)
    assert uneven.remaining(loader) == (3, 3)
    assert ids(uneven.counted(5, loader)) == ["0", "1", "2", "3", "4"]
    loader.step = 0
    assert ids(uneven.counted(2, loader)) == ["5", "6"] and uneven.remaining(loader) == (3, 3)


def test_for_a_loader_with_a_guessed_length_or_none_ranks_agree_batch_by_batch() -> None:
    import torch
    from ddpfix.patches.speechbrain import uneven

    class Guessed(tiny_recipe.Shares):
        def __len__(self) -> int:
            return 3

    for data in (tiny_recipe.Shares([1], False), Guessed([1], False)):
        assert uneven.remaining(torch.utils.data.DataLoader(data)) == (uneven.UNKNOWN, uneven.UNKNOWN)
    assert uneven.remaining(iter([1])) == (uneven.UNKNOWN, uneven.UNKNOWN)


@pytest.mark.parametrize("kind", ["sentence", "global"])
def test_validation_is_touched_only_where_it_has_collectives(kind: str) -> None:
    import torch
    from ddpfix.patches.speechbrain import uneven
    from speechbrain.processing.features import InputNormalization

    class Brain:
        modules = torch.nn.ModuleDict({"normalize": InputNormalization(norm_type=kind)}).eval()

    assert uneven._reduces_in_evaluation(Brain()) is (kind == "global" and since("1.0.3", "1.1.0"))
    if kind == "sentence":
        loader = loaded(3)
        assert uneven.evened(Brain(), loader, False, Held()) is loader


def test_loops_within_the_loop_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe may evaluate on one rank at the end of a stage: that loop must not ask the other ranks."""
    from ddpfix.patches.speechbrain import brains, uneven

    module = ModuleType("core")
    exec(WITH_LOOPS, vars(module))
    monkeypatch.setattr(brains, "is_distributed", lambda brain: True)
    monkeypatch.setattr(uneven, "evened", lambda brain, loader, stop, held: [f"even {brain.name}", *loader])
    site = Site("test", {"uneven": "pad"})
    original = vars(module)["tqdm"]
    uneven.even(site, module, vars(module)["Brain"])
    try:
        assert vars(module)["Brain"]("outer").fit(["data"], ["other"]) == {
            "outer": ["even outer", "data"],
            "evaluated": ["other"],
            "inner": ["even inner", "other"],
        }
    finally:
        assert site.undo() == []
    assert vars(module)["tqdm"] is original


WITH_LOOPS = """
def tqdm(iterable, **kwargs):
    return list(iterable)

class Brain:
    def __init__(self, name):
        self.name = name

    def fit(self, data, other):
        return self._fit_train(data, other)

    def _fit_train(self, data, other):
        result = {self.name: tqdm(data)}
        if self.name == "outer":
            result["evaluated"] = self.evaluate(other)
            result.update(Brain("inner").fit(other, None))
        return result

    def _fit_valid(self, data):
        return tqdm(data)

    def evaluate(self, data):
        return tqdm(data)
"""
