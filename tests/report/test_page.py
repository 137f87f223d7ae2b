"""The page as HTML: what it shows, and that nothing in a trace becomes code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from ddpfix.cli.report import command, figures, page, summary
from tests.support import traces
from tests.support.pages import Page
from tests.support.traces import Row

# In place of plotly.js, which the page only passes on.
SCRIPT = "/* plotly */"
HOSTILE = (
    '</script><script>alert(1)</script><!-- <script> --><img src=x onerror=alert(1)> " onmouseover=alert(1) x=" \''
    " &lt;b&gt; javascript:alert(1) ${alert(1)} %{x} var(--ink) \u2028 \x00 \x1b[31m \ud800"
    " <a href='javascript:alert(1)'>x</a></title>"
)


def written(*folders: Path) -> str:
    return page.make(command.load(list(folders)), SCRIPT)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> List[Path]:
    place = tmp_path_factory.mktemp("traces")
    return [
        traces.write(place / "stock", 4, 60, own_layers=True),
        traces.write(place / "ddpfix", 4, 60),
        traces.write(place / "many", 70, 30, own_layers=True),
    ]


@pytest.fixture(scope="module", params=["one", "many", "two"])
def source(request: Any, folders: List[Path]) -> str:
    return written(*{"one": folders[:1], "many": folders[2:], "two": folders[:2]}[request.param])


def test_findings_come_first_and_every_figure_says_what_it_is(source: str) -> None:
    found = Page(source)
    headings = [element.text for element in found.named("h2")]
    assert headings[0] == "Findings" and headings[-3:] == ["Settings", "What ddpfix said", "Fixes"]
    assert "Skipped layers by rank and step" in headings and "Time per step of each rank" in headings
    assert len(found.named("figure")) >= 5
    assert all(element.attributes["aria-label"] in headings for element in found.named("figure"))
    assert [len(found.named(name)) for name in ("h1", "title")] == [1, 1]


def test_nothing_is_loaded_from_elsewhere(source: str) -> None:
    found = Page(source)
    assert not [e for e in found.elements if "src" in e.attributes or e.name in ("link", "iframe", "object", "img")]
    assert "http" not in re.sub(r'"(plotlyServerURL|linkText)": ?"[^"]*"', "", source)


def test_two_runs_have_ratios_and_stand_beside_each_other(folders: List[Path]) -> None:
    found = Page(written(*folders[:2]))
    rows = [element.text for element in found.named("tr")]
    assert any(row.startswith("steps where ranks skipped different layers58") and row.endswith("00.00") for row in rows)
    headings = [element.text for element in found.named("h3")]
    assert headings.count("stock") == headings.count("ddpfix") >= 6
    one, two = figures.make(command.load(folders[:2]))
    for name in ("layers", "time", "own", "memory", "unused"):
        drawn = [next(each.spec for each in mine if each.name == name) for mine in (one, two)]
        # On the same scales.
        assert drawn[0]["layout"]["yaxis"].get("range") == drawn[1]["layout"]["yaxis"].get("range")
        assert drawn[0]["data"][0].get("zmax") == drawn[1]["data"][0].get("zmax")


def test_figures_are_what_plotly_reads(folders: List[Path]) -> None:
    """Plotly's own schema takes each figure."""
    objects = pytest.importorskip("plotly.graph_objects")
    for drawn in figures.make(command.load([folders[0], folders[2]])):
        for figure in drawn:
            objects.Figure(figure.spec)


def test_a_few_slow_steps_do_not_flatten_the_colours(tmp_path: Path) -> None:
    def vary(rank: int, step: int, row: Row) -> None:
        row["wait"], row["total"] = 0.0, 0.1 + (2.2 if rank == 0 and step in (31, 57) else 0.0) + 0.02 * rank

    ((*mine,),) = figures.make([summary.load(traces.write(tmp_path / "run", 2, 80, change=vary))])
    (trace,) = next(each for each in mine if each.name == "own").spec["data"]
    assert trace["zmax"] < 0.2 and max(value for row in trace["z"] for value in row if value) == pytest.approx(2.3)


def test_red_means_that_ranks_hold_up_each_other(folders: List[Path]) -> None:
    """Not waiting, which is what the other ranks do, and not a peak of the memory."""
    (mine,) = figures.make(command.load(folders[:1]))
    assert {figure.name for figure in mine if "#c93c12" in json.dumps(figure.spec)} == {"layers", "own"}


def facts(page: Page) -> Dict[str, str]:
    """Return the values of the head by their names."""
    return {name.text: value.text for name, value in zip(page.named("dt"), page.named("dd"))}


def test_the_head_has_what_ran_when_and_how_fast(tmp_path: Path) -> None:
    run = traces.write(tmp_path / "run", 2, 60, command="/exp/train.py --lr '1e-4'")
    found = Page(written(run))
    assert facts(found) == {
        "Command": "/exp/train.py --lr '1e-4'",
        "Started": "2023-11-14 22:13 UTC",
        "Duration": "0 h 0 min 30.0 s",
        "Steps": "60",
        "Speed": "2 steps/s",
        "Ranks": "2 of 2",
        "Hosts": "node0000 (2 ranks)",
        "Versions": "torch 2.13.0, transformers 5.23.0, Python 3.11.2",
    }
    assert any(e.text == "ddpfix 0.1.0 had 1 fix ready." for e in found.named("p"))


@pytest.mark.parametrize("value", [None, -1, 0, 1e20])
def test_a_start_that_is_no_date_is_left_out(value: Any, tmp_path: Path) -> None:
    found = facts(Page(written(traces.write(tmp_path / "run", 1, 5, started=value))))
    assert "Started" not in found and "Duration" not in found


def everywhere(value: Any) -> Any:
    """With hostile texts in place of all that a trace may say."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [everywhere(each) for each in value]
    if isinstance(value, dict):
        return {name if name in KEYS else HOSTILE: everywhere(each) for name, each in value.items()}
    return value


# What a trace calls its parts: headers, models, rows, events, settings, patches.
_OF_MODELS = "number class layers parameters first_layer first_parameter wrapped_at how"
_OF_OTHERS = "id state reason value from level text name requested effective note phase place"
KEYS = {*traces.header(0, 1), *traces.row(0, 1, 1, 1, False), *_OF_MODELS.split(), *_OF_OTHERS.split()}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = traces.write(tmp_path_factory.mktemp("traces") / "hostile", 2, 40, own_layers=True)
    more = [
        {"kind": "event", "time": 1.0, "step": 3, "level": HOSTILE, "text": HOSTILE},
        {"kind": "setting", "name": HOSTILE, "requested": HOSTILE, "effective": HOSTILE, "note": HOSTILE},
    ]
    for file in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [{**everywhere(line), "kind": line["kind"]} for line in [*lines[:-1], *more, lines[-1]]]
        for line in lines:
            if line["kind"] == "model":
                line["layers"] = [f"{name}{place}" for place, name in enumerate(line["layers"])]
                line["parameters"] = [f"{name}{place}" for place, name in enumerate(line["parameters"])]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_no_text_of_a_trace_becomes_an_element(hostile: Path, folders: List[Path]) -> None:
    """The same elements, with the same attributes, as a page of harmless texts has."""
    source = written(hostile)
    found, harmless = Page(source), Page(written(folders[0]))
    assert not found.comments
    assert {name for e in found.elements for name in e.attributes} <= {
        name for e in harmless.elements for name in e.attributes
    }
    assert {e.name for e in found.elements} <= {*(e.name for e in harmless.elements), "pre", "code"}
    assert len(found.named("script")) == len(found.named("figure")) + 1
    # It is shown all the same, as text.
    shown = HOSTILE.encode("utf-8", "replace").decode()
    assert sum(shown[:120] in element.text for element in found.named("td")) >= 5
    assert source.encode("utf-8")
    # Plotly reads tags in texts of figures, so that these have none either.
    for figure in figures.make(command.load([hostile]))[0]:
        for text in texts(figure.spec):
            assert "<" not in text.replace("<extra></extra>", "")


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value if isinstance(value, list) else value.values():
            yield from texts(each)


def test_an_empty_trace_has_a_page(tmp_path: Path) -> None:
    found = Page(written(traces.write(tmp_path / "empty", 2, 0)))
    assert "Both ranks finished after 0 steps." in found.named("body")[0].text
    assert not found.named("figure")


def test_layers_that_never_are_skipped_have_no_figure(tmp_path: Path) -> None:
    found = Page(written(traces.write(tmp_path / "run", 2, 20, change=lambda rank, step, row: row.update(skipped=[]))))
    assert "No layer was skipped in 20 steps." in found.named("body")[0].text
    assert "Skipped layers by rank and step" not in [e.text for e in found.named("h2")]
