"""``ddpfix doctor --ranks``: what all ranks together say, without ranks."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Optional

import pytest

from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Finding
from ddpfix.cli.doctor.ranks import compare, group, measure, place, verdict
from ddpfix.cli.doctor.ranks.record import Record

# What all ranks together say.


def record(rank: int, **facts: str) -> Record:
    same = {"torch version": "2.13.0", "setting unused": "auto", "CPUs": "8"}
    return Record(rank, f"host{rank // 8}", {**same, **facts}, ["gloo"], "", [])


def word(rank: int, clock: float = 0.0) -> Dict[str, Any]:
    times = {measure.title(name, size): [True, 0.001, 0.002, 0.003 + rank / 1e6] for name, size, _ in measure.PLAN}
    agreed = {"problem": None, "seconds": 0.1}
    return {"error": None, "times": times, "clock": 1e9 + clock, "agreement": agreed, "group_seconds": 1.0}


def test_thousands_of_ranks_have_a_report_of_one_size() -> None:
    size = 4096
    sick = Finding(WARNING, "limits", "/dev/shm has 64 MiB", "more")
    records = [record(rank, **({"CPUs": str(rank)} if rank % 2 else {})) for rank in range(size)]
    records = [r._replace(findings=[list(sick)] if r.rank >= 1000 else []) for r in records]
    words = {rank: word(rank, 30.0 if rank >= 4000 else 0.0) for rank in range(size)}
    begun = time.perf_counter()
    result = verdict.make(place.Place(0, size, 0, "x", 1, False, "0"), "gloo", records, words, [])
    assert time.perf_counter() - begun < 20
    assert not result["blocked"] and len(json.dumps(result)) < 20_000
    (entry,) = result["differences"]
    assert (entry["name"], entry["most_have"], entry["number"], len(entry["others"])) == ("CPUs", "8", 2048, 20)
    assert entry["others"][0] == {"rank": 1, "host": "host0", "value": "1"}
    texts = {each["text"]: each for each in result["findings"]}
    assert texts["/dev/shm has 64 MiB"]["number_of_ranks"] == 3096
    assert any("clocks differ by up to 30.0 s" in text for text in texts)
    assert result["collectives"][1]["slowest_rank"] == 4095 and result["hosts"]["number"] == 512
    assert result["collectives"][1]["bus_gb_per_s"] == pytest.approx((25 << 20) * 2 * 4095 / 4096 / 0.002 / 1e9)


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"torch version": "2.12.1"}, BLOCKS),
        ({"setting unused": "find"}, BLOCKS),
        ({"toolkit transformers": "5.0"}, BLOCKS),
        ({"setting log": "debug"}, WARNING),
        ({"numpy version": "1"}, WARNING),
    ],
)
def test_a_difference_that_ends_a_job_and_one_that_does_not(facts: Dict[str, str], level: str) -> None:
    records = [record(0), record(1, **facts), record(2)]
    (entry,) = compare.differences(records)
    assert entry["level"] == level and [each["rank"] for each in entry["others"]] == [1]
    assert compare.differences([record(0), record(1)]) == []


def test_wrong_values_and_errors_are_told() -> None:
    words = {0: word(0), 1: word(1), 2: {**word(2), "error": "all_reduce of 4 B: RuntimeError: gone", "times": {}}}
    words[1]["times"]["all_reduce of 25 MB"][0] = False
    here = place.Place(0, 4, 0, "x", 1, False, "0")
    result = verdict.make(here, "gloo", [record(rank) for rank in range(4)], words, [])
    texts = {each["text"]: each["ranks"] for each in result["findings"]}
    assert result["blocked"] and texts["all_reduce of 25 MB gave wrong values"] == [1]
    assert texts["all_reduce of 4 B: RuntimeError: gone"] == [2] and texts["1 ranks did not say how it went"] == [3]


@pytest.mark.parametrize(
    ("backends", "asked", "taken", "words"),
    [
        ([["gloo"], ["gloo"]], None, "gloo", ""),
        ([["nccl", "gloo"], ["nccl", "gloo"]], None, "nccl", ""),
        ([["nccl", "gloo"], ["gloo"]], None, "gloo", "some ranks have GPUs and NCCL"),
        ([["gloo"], ["gloo"]], "nccl", None, "nccl is unavailable on 2 of 2"),
        ([["nccl", "gloo"], ["nccl", "gloo"]], "gloo", "gloo", ""),
    ],
)
def test_the_backend_is_one_that_all_have(
    backends: List[List[str]], asked: Optional[str], taken: Optional[str], words: str
) -> None:
    problems: List[Dict[str, Any]] = []
    records = [record(rank)._replace(backends=each) for rank, each in enumerate(backends)]
    assert verdict.backend(records, asked, problems) == taken
    assert [words in each["text"] for each in problems] == ([True] if words else [])


def test_two_ranks_with_one_gpu() -> None:
    records = [record(rank)._replace(gpu=gpu) for rank, gpu in enumerate(["/0", "/0", "/1"])]
    assert [each["ranks"] for each in compare.same_gpu(records)] == [[0, 1]]
    assert compare.same_gpu([record(0), record(1)]) == []


def test_who_is_behind() -> None:
    stages = {0: [1, "x"], 1: [0, "x"], 3: [1, "x"]}
    assert group.behind(stages, 4) == [
        "rank 2: before the process group",
        "rank 1: making the process group",
        "rank 0, 3: all_reduce of 4 B",
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 4096, 100_000])
def test_the_sum_that_is_right(size: int) -> None:
    assert measure.expected_sum(size) == sum(rank % 7 + 1 for rank in range(size)) < 1 << 24


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"RANK": ""}, "RANK not set"),
        ({"RANK": "2"}, "RANK=2, WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
    ],
)
def test_a_place_that_is_none(more: Dict[str, str], words: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "29500"}
    assert place.read(environ).size == 2
    with pytest.raises(place.PlaceError) as caught:
        place.read({**environ, **more})
    assert words in str(caught.value) and "torchrun" in str(caught.value)
