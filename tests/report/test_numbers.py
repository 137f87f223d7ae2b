"""The numbers of a report, against the same ones computed from the rows of the trace, one by one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import median
from typing import Any, Dict, List

import pytest

from ddpfix.cli.report import compare, figures, findings, summary
from tests.support import traces
from tests.support.traces import GIB, Row

Rows = Dict[int, List[Row]]


def wild(rank: int, step: int, row: Row) -> None:
    """Values without a pattern, some of them missing."""
    dice = random.Random(rank * 100_003 + step)
    row["total"], row["wait"] = dice.uniform(0.5, 2.0), dice.uniform(0.0, 0.4)
    row["backward"] = row["wait"] + dice.uniform(0.0, 0.2)
    row["peak"] = int(dice.uniform(1, 2 + step / 10) * GIB)
    row["skipped"] = sorted(dice.sample(range(6), 2)) if dice.random() < 0.5 else [1]
    row["unused"] = sorted({0, *dice.sample(range(24), 3)})
    if dice.random() < 0.1:
        del row["wait"]
    if dice.random() < 0.1:
        del row["skipped"], row["unused"]


def read(folder: Path) -> Rows:
    found: Rows = {}
    for file in sorted(folder.glob("rank-*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[lines[0]["rank"]] = [line for line in lines if line["kind"] == "step"]
    return found


@pytest.fixture(scope="module", params=[(3, 50), (2, 1000), (450, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    ranks, steps = request.param
    folder = traces.write(tmp_path_factory.mktemp("traces") / "run", ranks, steps, change=wild)
    return summary.load(folder), read(folder)


def parts_of(row: Row) -> Dict[str, float]:
    found: Dict[str, float] = {
        name: row[name] for name in ("data", "forward", "optimizer", "total", "wait") if name in row
    }
    if "wait" in row:
        found["own"], found["backward"] = row["total"] - row["wait"], row["backward"] - row["wait"]
        listed = sum(found[name] for name in ("data", "forward", "backward", "wait", "optimizer"))
        found["other"] = max(0.0, row["total"] - listed)
    return found


def test_medians_of_each_rank_and_means_of_the_run(run: Any) -> None:
    data, rows = run
    assert len(data["time"]["per_rank"]) == len(rows)
    means: Dict[str, List[float]] = {}
    for each in data["time"]["per_rank"]:
        # All but the first step, which has what is done once.
        mine = list(map(parts_of, rows[each["rank"]][1:]))
        for part in ("data", "forward", "optimizer", "total", "wait", "own"):
            values = [row[part] for row in mine if part in row]
            assert each[part] == pytest.approx(median(values))
            means.setdefault(part, []).append(sum(values) / len(values))
        if all("own" in row for row in mine):
            assert each["backward"] == pytest.approx(median(row["backward"] for row in mine), abs=1e-9)
            assert each["other"] == pytest.approx(median(row["other"] for row in mine), abs=1e-9)
    for part, values in means.items():
        assert data["time"]["mean"][part] == pytest.approx(sum(values) / len(values))


def test_the_verdict_and_the_bars_use_the_same_statistic(run: Any) -> None:
    data, _ = run
    found = data["time"]["straggler"]
    mine = next(each for each in data["time"]["per_rank"] if each["rank"] == found["rank"])
    assert found["own"] == mine["own"] == max(each["own"] for each in data["time"]["per_rank"])
    assert found["part_seconds"] == mine[found["part"]]
    figure = next(each for each in figures.make([data])[0] if each.name == "time")
    if len(data["time"]["per_rank"]) <= 48:
        bars = {trace["name"]: trace["x"] for trace in figure.spec["data"]}
        assert bars["data"] == pytest.approx([each["data"] for each in data["time"]["per_rank"]], rel=1e-4)


def test_the_straggler_and_how_often_it_was_slowest(run: Any) -> None:
    data, rows = run
    owns = {rank: {r["step"]: r["total"] - r["wait"] for r in mine[1:] if "wait" in r} for rank, mine in rows.items()}
    usual = {rank: median(own.values()) for rank, own in owns.items()}
    worst = max(usual, key=lambda rank: usual[rank])
    found = data["time"]["straggler"]
    assert found["rank"] == worst and found["own"] == pytest.approx(usual[worst])
    assert found["others"] == pytest.approx(median(own for rank, own in usual.items() if rank != worst))
    slowest: Dict[int, int] = {}
    for step in range(2, data["steps"] + 1):
        there = {rank: own[step] for rank, own in owns.items() if step in own}
        if len(there) > 1:
            who = max(there, key=lambda rank: there[rank])
            slowest[who] = slowest.get(who, 0) + 1
    assert {
        each["rank"]: each["slowest_steps"] for each in data["time"]["per_rank"] if each["slowest_steps"]
    } == slowest
    assert data["time"]["judged_steps"] == sum(slowest.values())


def test_own_work_by_rows_of_ranks_is_that_of_the_slowest(run: Any) -> None:
    data, rows = run
    for (low, high), cells in zip(data["rank_rows"], data["time"]["own"]):
        for (first, last), cell in zip(data["columns"], cells):
            means = []
            for rank in range(low, high + 1):
                mine = [row for row in rows[rank][max(1, first - 1) : last] if "wait" in row]
                means += [sum(row["total"] - row["wait"] for row in mine) / len(mine)] if mine else []
            assert cell == (pytest.approx(max(means)) if means else None)


def test_steps_in_which_ranks_skip_different_layers(run: Any) -> None:
    data, rows = run
    parted: Dict[int, List[int]] = {}
    compared = 0
    for step in range(1, data["steps"] + 1):
        sets = [set(mine[step - 1]["skipped"]) for mine in rows.values() if "skipped" in mine[step - 1]]
        compared += len(sets) > 1
        for layer in range(6):
            if len({layer in each for each in sets}) == 2:
                parted.setdefault(layer, []).append(step)
    layers = data["layers"]
    assert layers["compared_steps"] == compared
    assert layers["disagreed_steps"] == [len(parted.get(layer, [])) for layer in range(6)]
    assert layers["steps_with_disagreement"] == len(set().union(*parted.values()))
    width = data["columns"][0][1]
    for layer in range(6):
        where = [(step - 1) // width for step in parted.get(layer, [])]
        assert layers["disagreed"][layer] == [where.count(column) for column in range(len(data["columns"]))]


def test_how_often_a_layer_was_skipped_by_rank_and_step(run: Any) -> None:
    data, rows = run
    layers = data["layers"]
    for layer in range(6):
        for (low, high), shares in zip(layers["rank_rows"], layers["skipped"][layer]):
            for (first, last), share in zip(data["columns"], shares):
                told = [
                    row for rank in range(low, high + 1) for row in rows[rank][first - 1 : last] if "skipped" in row
                ]
                expected = sum(layer in row["skipped"] for row in told) / len(told) if told else None
                assert share == (None if expected is None else pytest.approx(expected, abs=1e-4))


def test_peaks_and_the_batches_that_made_them(run: Any) -> None:
    data, rows = run
    order = sorted((row["step"], rank, row) for rank, mine in rows.items() for row in mine)
    most = max(row["peak"] for _, _, row in order)
    last = data["memory"]["records"][-1]
    step, rank, row = next(each for each in order if each[2]["peak"] == most)
    assert (last["bytes"], last["step"], last["rank"]) == (most, step, rank)
    assert last["shape"] == row["shape"]
    for name in ("bytes", "step"):
        numbers = [record[name] for record in data["memory"]["records"]]
        assert numbers == sorted(set(numbers))
    ends = [max(peaks[-1] for peaks in data["memory"]["peak"])]
    assert ends == [most]


def test_parameters_without_a_gradient(run: Any) -> None:
    data, rows = run
    told = [row["unused"] for mine in rows.values() for row in mine if "unused" in row]
    names = [f"encoder.layers.{place * 6 // 24}.weight{place}" for place in range(24)]
    shares = {names[index]: sum(index in each for each in told) / len(told) for index in range(24)}
    groups = data["unused"]["groups"]
    assert {name: group["share"] for group in groups for name in group["names"]} == pytest.approx(shares)
    assert [group["names"] for group in groups if group["always"]] == [[names[0]]]
    assert (data["unused"]["always"], data["unused"]["sometimes"]) == (1, 23)


def test_the_size_does_not_grow_with_ranks_and_steps(run: Any) -> None:
    data, _ = run
    assert len(data["columns"]) <= 400 and len(data["rank_rows"]) <= 200
    assert len(data["time"]["own"]) == len(data["rank_rows"])


def sentences(folder: Path) -> str:
    return "\n".join(each.where for each in findings.findings(summary.load(folder)))


def test_findings_name_the_straggler_the_layers_and_the_batch(tmp_path: Path) -> None:
    found = sentences(traces.write(tmp_path / "bad", 4, 60, own_layers=True))
    assert "Rank 3 is a straggler: 500 ms a step, other ranks 300 ms (medians, waits excluded)" in found
    assert "; they wait 40 % of their time. It was the slowest in 59 of 59 steps." in found
    assert "Most of the difference is data loading: 220 ms a step, other ranks 20.0 ms." in found
    assert "Ranks skipped different layers in 5" in found
    assert "GPU memory rose from 17.0 GiB in step 1 to 54.0 GiB in step 30. Largest rise: 37.0 GiB in step 30" in found
    assert "on rank 1 (largest batch 4 \u00d7 2900 \u00d7 80)." in found
    assert "All 4 ranks finished after 60 steps." in found


def test_findings_of_a_run_in_step(tmp_path: Path) -> None:
    found = sentences(traces.write(tmp_path / "good", 3, 20))
    assert "All ranks skipped the same layers in all 20 steps" in found
    assert "No straggler. Slowest: rank" in found and "stayed flat: at most 17.0 GiB" in found


@pytest.mark.parametrize(("slow", "said"), [(0, "No straggler."), (0.05, "Rank 2 is a straggler")])
def test_chance_makes_no_straggler(tmp_path: Path, slow: float, said: str) -> None:
    """Steps of all lengths, in which each rank is the slowest by turns; one rank has a single long one."""

    def vary(rank: int, step: int, row: Row) -> None:
        row["wait"] = 0.1
        row["total"] = random.Random(rank * 100_003 + step).uniform(0.2, 0.24) + (slow if rank == 2 else 0.0)
        if (rank, step) == (1, 7):
            row["total"] += 0.5

    found = sentences(traces.write(tmp_path / "run", 3, 40, change=vary))
    assert said in found


def test_two_long_clips_on_another_rank_do_not_move_the_straggler(tmp_path: Path) -> None:
    """Rank 1 loads slowly in 67 of 79 steps; two steps of rank 0 are so long that its mean is the largest."""

    def vary(rank: int, step: int, row: Row) -> None:
        row["wait"], row["data"] = 0.0, 0.0
        if rank == 1 and step % 6:
            row["data"] = 0.02
        row["total"] = 0.1 + row["data"] + (4.0 if rank == 0 and step in (31, 57) else 0.0)

    folder = traces.write(tmp_path / "run", 2, 80, change=vary)
    rows = read(folder)
    assert sum(row["total"] for row in rows[0]) > sum(row["total"] for row in rows[1])
    found = sentences(folder)
    assert "Rank 1 is a straggler: 120 ms a step, other ranks 100 ms (medians, waits excluded)" in found
    assert "2 slow steps (over 4x the median). Slowest: step 57 on rank 0, 4.10 s (median 100 ms)." in found


def test_a_few_steps_tell_nothing_about_who_is_slow(tmp_path: Path) -> None:
    def vary(rank: int, step: int, row: Row) -> None:
        row["wait"], row["total"] = 0.0, 0.5 if rank == 1 else 0.1

    assert "straggler" not in sentences(traces.write(tmp_path / "run", 2, 9, change=vary))


def test_a_trace_that_has_reached_its_limit_says_so(tmp_path: Path) -> None:
    folder = traces.write(tmp_path / "thin", 1, 24)
    file = folder / "rank-00000.jsonl"
    rows = file.read_text().splitlines()
    # The header, the model, steps 1 to 8, and then each eighth.
    file.write_text("\n".join([*rows[:10], rows[17], *rows[25:]]) + "\n")
    assert "The trace reached its size limit: up to 8 steps share a row." in sentences(folder)


def test_only_rows_that_tell_are_told_of(tmp_path: Path) -> None:
    """What got no gradient is not known of each step."""

    def some_tell(rank: int, step: int, row: Row) -> None:
        row["unused"] = []
        if step % 2 == 0:
            del row["unused"]

    found = sentences(traces.write(tmp_path / "run", 2, 40, change=some_tell))
    assert "Every parameter had a gradient in the 40 of 80 rows that record it." in found
    found = sentences(traces.write(tmp_path / "all", 2, 40, change=lambda rank, step, row: row.update(unused=[])))
    assert "Every parameter had a gradient in every step." in found


def test_findings_tell_how_ranks_ended(tmp_path: Path) -> None:
    folder = traces.write(tmp_path / "ends", 4, 5)
    (folder / "rank-00002.jsonl").unlink()
    for rank, how in ((1, '"failed: ValueError: bad batch"'), (3, None)):
        file = folder / f"rank-{rank:05d}.jsonl"
        kept = file.read_text().splitlines()[:-1]
        last = [f'{{"kind": "end", "time": 1.0, "how": {how}}}'] if how else ['{"kind": "st']
        file.write_text("\n".join([*kept, *last]) + ("\n" if how else ""))
    found = sentences(folder)
    assert "rank 1 failed: ValueError: bad batch" in found
    assert "rank 3 has no exit record" in found
    assert "No trace from rank 2 (4 ranks in all)." in found


def test_two_runs_are_compared_by_ratios(tmp_path: Path) -> None:
    def twice(rank: int, step: int, row: Row) -> None:
        row["total"] *= 2
        row["peak"] //= 2

    one = summary.load(traces.write(tmp_path / "one", 2, 20, own_layers=True))
    two = summary.load(traces.write(tmp_path / "two", 2, 20, change=twice))
    found = {each.name.strip(): each for each in compare.compare(one, two)}
    assert found["time per step"].ratio == pytest.approx(2.0)
    assert found["steps per second"].ratio == pytest.approx(0.5)
    assert found["peak memory of a rank"].ratio == pytest.approx(0.5)
    parted = found["steps where ranks skipped different layers"]
    assert parted.one and (parted.two, parted.ratio) == (0, 0)
