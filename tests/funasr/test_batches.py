"""What FunASR's own samplers and index give, unpatched and under ddpfix: limits, order, lists without lengths.

Everything runs in this process on the classes of the installed release; ranks are played by the samplers' own fields.
"""

from __future__ import annotations

import copy
import json
import random
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import pytest
from packaging.version import Version

import ddpfix
from ddpfix import engine
from tests.funasr import launch

HERE = Version(launch.version())
OLD = Version("1.0.18") > HERE
BUFFERED = Version("1.0.20") <= HERE


class Data:
    """A dataset that knows lengths only."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def get_source_len(self, index: int) -> int:
        return self.lengths[index]

    def get_target_len(self, index: int) -> int:
        return self.lengths[index] // 10


@contextmanager
def patched(**settings: Any) -> Iterator[None]:
    """ddpfix is on, and everything is as it was afterwards."""
    import funasr.datasets.audio_datasets.samplers as module

    classes = [kind for kind in vars(module).values() if isinstance(kind, type)]
    before = [vars(kind).get("__iter__") for kind in classes]
    ddpfix.activate(**settings)
    try:
        yield
    finally:
        assert ddpfix.deactivate() == []
    assert [vars(kind).get("__iter__") for kind in classes] == before


def sampler(name: str, lengths: Sequence[int], rank: int = 0, ranks: int = 1, epoch: int = 0, **conf: Any) -> Any:
    """One of FunASR's samplers, as rank ``rank`` of ``ranks`` would have it."""
    import funasr.datasets.audio_datasets.samplers as module

    if name.startswith("Espnet"):
        import funasr.datasets.audio_datasets.espnet_samplers as module  # type: ignore[no-redef]
    made = getattr(module, name)(Data(lengths), **conf)
    if OLD:
        return made
    made.rank, made.num_replicas = rank, ranks
    if hasattr(made, "sort_size"):
        made.sort_size *= ranks
    if name == "CustomDistributedBatchSampler":
        made.num_samples = -(-len(lengths) // (made.batch_size * ranks)) * made.batch_size
        made.total_size = made.num_samples * ranks
    made.set_epoch(epoch)
    return made


def plain(batches: Any) -> List[List[int]]:
    return [[int(index) for index in batch] for batch in batches]


def tailed(count: int, seed: int = 0) -> List[int]:
    """Lengths with a long tail, in frames of 10 ms: 2 to 20 s."""
    draw = random.Random(seed)
    return [min(2000, int(200 + draw.expovariate(1 / 350))) for _ in range(count)]


def tops(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> List[int]:
    return [max(lengths[index] for index in batch) for batch in batches]


def frames(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> List[int]:
    return [top * len(batch) for top, batch in zip(tops(batches, lengths), batches)]


DYNAMIC = "CustomDistributedDynamicBatchSampler"
BUFFER = "CustomDistributedBufferDynamicBatchSampler"
ESPNET = "EspnetStyleBatchSampler"
new = pytest.mark.skipif(OLD, reason="other samplers before 1.0.18")
buffered = pytest.mark.skipif(not BUFFERED, reason="no sort_size before 1.0.20")


@pytest.mark.patches("funasr.memory")
@new
@pytest.mark.parametrize("name", [DYNAMIC, pytest.param(ESPNET, marks=buffered)])
def test_token_batches_keep_their_limits(name: str) -> None:
    lengths = [3000, 500, 700, 2500, 900, 600, 400, 2300]
    conf: Dict[str, Any] = {"batch_size": 2400, "batch_type": "token", "max_token_length": 2048, "shuffle": False}
    conf = {"batch_size": 4000, "max_token_length": 2048} if name == ESPNET else conf
    unpatched = plain(sampler(name, lengths, **conf))
    over = [index for batch in unpatched for index in batch if lengths[index] > 2048]
    loses = Version("1.0.26") <= HERE if name == ESPNET else Version("1.0.20") > HERE
    assert len(over) == (3 if loses else 0)
    assert name == ESPNET or not loses or [] in unpatched
    with patched():
        batches = plain(sampler(name, lengths, **conf))
    assert sorted(index for batch in batches for index in batch) == [1, 2, 4, 5, 6]
    assert max(frames(batches, lengths)) <= conf["batch_size"]


@pytest.mark.patches("funasr.memory")
@new
def test_no_empty_batch_and_none_over_its_size() -> None:
    name, conf = (BUFFER, {"sort_size": 4}) if BUFFERED else (DYNAMIC, {})
    lengths = [900, 950, 1800, 1700, 1600, 1750]
    settings: Dict[str, Any] = {"batch_size": 1000, "max_token_length": 2048, "shuffle": False, **conf}
    if not BUFFERED:
        lengths = lengths[2:] + lengths[:2]
    unpatched = plain(sampler(name, lengths, **settings))
    assert [] in unpatched
    assert max(frames([batch for batch in unpatched if batch], lengths)) == 1800
    with patched():
        batches = plain(sampler(name, lengths, **settings))
    assert [] not in batches
    assert max(frames(batches, lengths)) <= 1000
    assert sorted(index for batch in batches for index in batch) == sorted(lengths.index(n) for n in (900, 950))


@pytest.mark.patches("funasr.memory")
@buffered
def test_lengths_do_not_climb() -> None:
    lengths = tailed(600)
    conf: Dict[str, Any] = {"batch_size": 6000, "sort_size": 1000, "max_token_length": 2048}
    unpatched = tops(plain(sampler(BUFFER, lengths, epoch=3, **conf)), lengths)
    assert unpatched == sorted(unpatched), "one buffer, ascending to its end"
    with patched():
        batches = plain(sampler(BUFFER, lengths, epoch=3, **conf))
        other = plain(sampler(BUFFER, lengths, epoch=4, **conf))
    order = tops(batches, lengths)
    assert sorted(order) == unpatched
    half = len(order) // 2
    assert order[0] == max(unpatched)
    assert abs(sum(order[:half]) / half - sum(order[half:]) / (len(order) - half)) < 150
    assert order != tops(other, lengths)


@pytest.mark.patches("funasr.memory")
@buffered
def test_ranks_stay_in_step() -> None:
    """All ranks permute in the same way: each step has batches of similar length, and every batch is given once."""
    lengths = tailed(900)
    conf: Dict[str, Any] = {"batch_size": 6000, "sort_size": 200, "max_token_length": 1500}
    unpatched = [plain(sampler(BUFFER, lengths, rank, 4, **conf)) for rank in range(4)]
    with patched():
        ranks = [plain(sampler(BUFFER, lengths, rank, 4, **conf)) for rank in range(4)]
    assert len({len(batches) for batches in ranks}) == 1
    together = [tuple(batch) for batches in ranks for batch in batches]
    kept = {index for index, length in enumerate(lengths) if length <= 1500}
    assert {index for batch in together for index in batch} == kept
    assert {tuple(batch) for batches in unpatched for batch in batches} == set(together)

    def spread(parts: Sequence[Sequence[Sequence[int]]]) -> float:
        steps = [tops(step, lengths) for step in zip(*parts)]
        return sum(max(step) - min(step) for step in steps) / len(steps)

    assert spread(ranks) <= spread(unpatched) + 20


@pytest.mark.patches("funasr.memory")
@buffered
@pytest.mark.parametrize("name", [BUFFER, ESPNET])
def test_resume_goes_on_where_it_stopped_and_validation_keeps_its_order(name: str) -> None:
    lengths = tailed(400)
    conf: Dict[str, Any] = {"batch_size": 6000, "sort_size": 500, "max_token_length": 2048}
    validation = {**conf, "is_training": False, "shuffle": False}
    unpatched = plain(sampler(name, lengths, **validation))
    with patched():
        assert plain(sampler(name, lengths, **validation)) == unpatched
        whole = plain(sampler(name, lengths, 1, 2, epoch=2, **conf))
        if not hasattr(sampler(name, lengths, **conf), "start_step"):
            return
        resumed = sampler(name, lengths, 1, 2, epoch=2, start_step=5, **conf)
        assert plain(resumed) == whole[5:]
        if hasattr(resumed, "batch_num"):
            assert len(resumed) == len(whole) - 5


@pytest.mark.patches("funasr.memory")
@new
def test_what_keeps_to_all_limits_stays_as_it_is() -> None:
    """Nothing is changed without need: the batch that needs most memory comes first, the others keep their order, and
    the global random streams advance as without ddpfix."""
    import torch

    lengths = tailed(300)
    cases = [(DYNAMIC, {"batch_size": 6000}), ("CustomDistributedBatchSampler", {"batch_size": 8})]
    cases += [(ESPNET, {"batch_size": 6000})] if BUFFERED else []
    for name, conf in cases:
        # What fills the last step of rank 1 is drawn anew.
        for rank in range(1 if name == ESPNET else 2):
            runs = []
            for on in (False, True):
                random.seed(7)
                torch.manual_seed(7)
                each = sampler(name, lengths, rank, 2, epoch=1, max_token_length=2048, **conf)  # type: ignore[arg-type]
                if on:
                    with patched():
                        batches = plain(each)
                else:
                    batches = plain(each)
                    if name in (DYNAMIC, ESPNET):
                        largest = max(batches, key=lambda b: len(b) * max(lengths[i] for i in b) ** 2)
                        batches.remove(largest)
                        batches.insert(0, largest)
                runs.append((batches, random.random(), torch.rand(1).item()))
            assert runs[0] == runs[1], name


def _write(path: Path, lines: Sequence[Dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps({"source": "a.wav", "target": "a b", "prompt": "", **x}) + "\n" for x in lines))
    return str(path)


def _index(path: str, **conf: Any) -> Any:
    from funasr.register import tables

    return tables.index_ds_classes.get("IndexDSJsonl")(path, **conf)


@pytest.mark.patches("funasr.lengths")
@pytest.mark.skipif(Version("1.0.6") > HERE, reason="a KeyError names source_len before 1.0.6")
def test_a_list_without_lengths_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "train.jsonl", [{"source_len": 500, "target_len": 4}, *({} for _ in range(299))])
    unpatched = _index(path, batch_type="token")
    assert [unpatched.get_source_len(unpatched[number]) for number in range(3)] == [500, 1, 1]
    with patched():
        with pytest.raises(ValueError, match="299 of 300 utterances have no source_len") as caught:
            _index(path, batch_type="token")
        assert path in str(caught.value) and "DDPFIX_FUNASR_LENGTHS=0" in str(caught.value)
        assert "scp2jsonl" in str(caught.value)
        # Batches of so many samples do not depend on lengths.
        assert len(_index(path, batch_type="example")) == 300
    with patched(funasr_lengths=0):
        assert len(_index(path, batch_type="token")) == 300


@pytest.mark.patches("funasr.memory")
@pytest.mark.skipif(Version("1.0.24") > HERE, reason="the index has no limits before 1.0.24")
def test_what_the_index_leaves_out_is_counted(tmp_path: Path) -> None:
    lengths = [500, 2500, 3000, 900, 2100, 2000]
    path = _write(tmp_path / "train.jsonl", [{"source_len": n, "target_len": 300} for n in lengths])
    sums = Version("1.0.26") <= HERE
    assert len(_index(path)) == (2 if sums else 3), "in silence"
    with patched():
        from ddpfix.patches.funasr import jsonl

        data = Data([])
        data.index_ds = _index(path)  # type: ignore[attr-defined]
        expected = {"max_source_length=2048": 3, **({"max_token_length=2200": 1} if sums else {})}
        current = engine.current()
        assert current is not None and current.kept.of(jsonl.LeftOut).of(data) == expected


old = pytest.mark.skipif(not OLD, reason="these samplers are gone from 1.0.18 on")


@pytest.mark.patches("funasr.memory")
@old
def test_old_samplers_give_what_they_measure() -> None:
    import numpy

    lengths = tailed(800)
    conf: Dict[str, Any] = {"batch_size": 9000, "batch_type": "length", "max_token_length": 1500, "buffer_size": 200}
    numpy.random.seed(0)
    given = plain(sampler("BatchSampler", lengths, **conf))
    weights = [length + length // 10 for length in lengths]
    unpatched = frames(given, weights)
    assert sum(size > 9000 for size in unpatched) > len(unpatched) // 2, "most batches are over their size"
    assert any(weights[index] > 1500 for batch in given for index in batch)
    with patched():
        each = sampler("BatchSampler", lengths, **conf)
        batches, later = plain(each), plain(each)
        assert len(each) == len(later)
    assert max(frames(batches, weights)) <= 9000
    wanted = {index for index, weight in enumerate(weights) if weight <= 1500}
    assert {index for batch in batches for index in batch} == wanted, "also those of the last batch"
    assert batches != later
    order = tops(batches, lengths)
    assert order != sorted(order)


@pytest.mark.patches("funasr.memory")
@old
def test_old_samplers_split_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    import funasr.datasets.audio_datasets.samplers as module
    from torch import distributed

    lengths = tailed(400)
    names = ["BatchSampler"] + [name for name in vars(module) if name.startswith("RankFull")]
    conf: Dict[str, Any] = {"batch_size": 8, "max_token_length": 3000, "buffer_size": 100, "drop_last": False}
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda *group: 2)
    for name in names:
        ranks = []
        for rank in range(2):
            monkeypatch.setattr(distributed, "get_rank", lambda *group, rank=rank: rank)
            with patched():
                ranks.append(plain(sampler(name, lengths, **conf)))
        assert len(ranks[0]) == len(ranks[1])
        seen = [{index for batch in batches for index in batch} for batches in ranks]
        assert seen[0] | seen[1] == set(range(400)), name
        assert len(seen[0] & seen[1]) <= 8, "no more than one batch, to fill the last step"


@pytest.mark.patches("funasr.limits")
def test_limits_in_plain_lists() -> None:
    from ddpfix.patches.funasr import batches as plans
    from ddpfix.patches.funasr.batches import Limits, evened, filled, hold, mixed, whole_steps

    lengths = [3, 9, 4, 4, 20, 5]
    get = lengths.__getitem__
    limits = Limits(get, 10, get, 12, get)
    counts = plans.counts()
    assert hold([[0, 1], [], [2, 3, 4], [5]], limits, counts) == [[0], [1], [2, 3], [5]]
    assert (counts["long"], counts["empty"], counts["split"]) == (1, 1, 1)
    assert filled(range(6), 3, limits, plans.counts()) == [[0, 2], [1], [3, 5]]
    whole = whole_steps([[0], [1], [2]], 2, 5, counts)
    assert len(whole) == 4 and whole[:3] == [[0], [1], [2]] and counts["repeated"] == 1
    steps = mixed([[0], [3], [1], [5], [2], [3]], 2, 1, limits)
    assert steps[:2] == [[1], [5]] and sorted(map(tuple, zip(steps[::2], steps[1::2]))) == [
        ([0], [3]),
        ([1], [5]),
        ([2], [3]),
    ]
    assert evened([[0], [1]], 1, 0) == [[0]]
    assert sorted(evened([[0], [1]], 4, 0)) == [[0], [0], [1], [1]]
    assert copy.copy(limits) == limits
