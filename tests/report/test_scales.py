"""Colours of a heat map: a few outliers do not flatten it, the bar says what lies beyond, and values stay true."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpfix.cli.report import figures, summary
from ddpfix.cli.report.figures.scales import robust
from tests.support import traces
from tests.support.traces import Row


def contrast(low: float, high: float, ends: tuple[float, float]) -> float:
    """Return how far apart two values are on a scale, as a part of it."""
    return (min(high, ends[1]) - max(low, ends[0])) / (ends[1] - ends[0])


@pytest.mark.parametrize(
    ("rows", "pair", "least", "most"),
    [
        # Two outliers do not flatten the scale, and ranks that are as fast are not far apart.
        ([[0.1] * 77 + [4.1, 4.3], [0.12] * 79], (0.1, 0.12), 0.25, 1.0),
        ([[0.1, 0.101, 0.099] * 20] * 2, (0.099, 0.101), 0.0, 0.05),
        # A rank that is slow as a whole is no outlier.
        ([[0.1] * 50] * 7 + [[1.0] * 50], (0.1, 1.0), 0.9, 0.9),
    ],
)
def test_how_far_apart_colours_are(
    rows: list[list[float]], pair: tuple[float, float], least: float, most: float
) -> None:
    ends = robust(rows)
    assert least <= round(contrast(*pair, ends), 9) <= most


@pytest.mark.parametrize("rows", [[], [[]], [[None]], [[0.0, 0.0]], [[None, 0.2]]])
def test_a_scale_has_a_width_whatever_there_is(rows: list[list[float]]) -> None:
    low, top = robust(rows)
    assert 0 <= low < top


def test_the_bar_says_what_lies_beyond_it_and_cells_keep_their_values(tmp_path: Path) -> None:
    def vary(rank: int, step: int, row: Row) -> None:
        row["wait"], row["total"] = 0.0, 0.1 + (2.2 if rank == 0 and step in (31, 57) else 0.0) + 0.02 * rank

    data = summary.load(traces.write(tmp_path / "run", 2, 80, change=vary))
    (mine,) = figures.make([data])
    figure = next(each for each in mine if each.name == "own")
    (trace,) = figure.spec["data"]
    assert trace["zmax"] < 0.2 and max(value for row in trace["z"] for value in row if value) == pytest.approx(2.3)
    assert figure.is_scale and figure.legend[-1][1] == f"{trace['zmax'] * 1000:.0f} ms and more"
    # Where nothing lies beyond, nothing says so.
    assert "less" not in figure.legend[0][1]
