"""The page as HTML: what it has for keyboards and screen readers, and that nothing in a trace becomes code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from ddpfix.cli.report import command, page
from tests.support import traces
from tests.support.pages import Element, Page
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


def test_every_figure_has_a_name_a_finding_and_its_numbers(source: str) -> None:
    found = Page(source)
    plots = [element for element in found.elements if element.attributes.get("class") == "plot"]
    assert len(plots) >= 6
    for plot in plots:
        assert plot.attributes["role"] == "img" and plot.attributes["tabindex"] == "0"
        assert len(plot.attributes["aria-label"]) > 40
    assert len(found.named("figure")) == len(plots)
    tables = [table for table in found.named("table") if table.inside("figure") and table.inside("details")]
    assert len(tables) == len(plots)
    for table in found.named("table"):
        assert table.parent is not None and table.parent.attributes["tabindex"] == "0"
        assert table.parent.attributes["aria-label"]
    assert all(cell.attributes["scope"] in ("row", "col") for cell in found.named("th"))


def test_headings_landmarks_labels_and_ids(source: str) -> None:
    found = Page(source)
    levels = [int(element.name[1]) for element in found.elements if re.fullmatch(r"h[1-6]", element.name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in zip(levels, levels[1:]))
    assert [len(found.named(name)) for name in ("main", "nav", "header", "title")] == [1, 1, 1, 1]
    ids = [element.attributes["id"] for element in found.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in found.elements:
        for name in ("aria-labelledby", "for"):
            assert element.attributes.get(name, ids[0]) in ids
        if element.name == "a":
            assert element.attributes["href"][0] == "#" and element.attributes["href"][1:] in ids
    assert found.named("html")[0].attributes["lang"] == "en"
    assert found.elements[[e.name for e in found.elements].index("body") + 1].attributes["href"] == "#main"


def policy_of(found: Page) -> Dict[str, List[str]]:
    meta = next(e for e in found.named("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy")
    parts = [part.split() for part in meta.attributes["content"].split(";")]
    return {part[0]: part[1:] for part in parts}


def test_the_policy_allows_the_two_scripts_and_no_connection(source: str) -> None:
    found = Page(source)
    policy = policy_of(found)
    assert policy["default-src"] == ["'none'"]
    run = [script for script in found.named("script") if script.attributes.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode() for script in run]
    assert policy["script-src"] == [f"'sha256-{each}'" for each in hashes] and len(hashes) == 2
    assert set(policy) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert not [word for words in policy.values() for word in words if "http" in word or word == "*"]


def test_nothing_is_loaded_from_elsewhere(source: str) -> None:
    found = Page(source)
    assert not [e for e in found.elements if "src" in e.attributes or e.name in ("link", "iframe", "object", "img")]
    assert "url(" not in source.split("<style>")[1].split("</style>")[0]


def test_a_comparison_has_ratios(folders: List[Path]) -> None:
    found = Page(written(*folders[:2]))
    rows = [element.text for element in found.named("tr")]
    assert any(row.startswith("steps where ranks skipped different layers58") and row.endswith("00.00") for row in rows)
    headings = [element.text for element in found.elements if element.name in ("h3", "figcaption")]
    assert headings.count("stock") == headings.count("ddpfix") >= 8
    # What holds for both runs stands there once.
    shared = [element.text for element in found.named("p") if element.attributes.get("class") == "about"]
    assert len(shared) == len(set(shared)) >= 6


def test_figures_are_what_plotly_reads(folders: List[Path]) -> None:
    """Plotly's own schema takes each figure, with the colours that the page puts in."""
    objects = pytest.importorskip("plotly.graph_objects")
    for folder in (folders[0], folders[2]):
        for spec in specs(Page(written(folder))):
            plain = json.loads(re.sub(r"var\(--[a-z]+\)", "#123456", json.dumps(spec)))
            objects.Figure(data=plain["data"], layout=plain["layout"])


def classes(element: Element) -> List[str]:
    return (element.attributes.get("class") or "").split()


def test_a_legend_stands_above_the_numbers_and_a_diamond_is_one(source: str) -> None:
    found = Page(source)
    order = [kind for e in found.elements for kind in ("legend", "scale", "plot") if kind in classes(e)]
    assert order.count("legend") + order.count("scale") >= 5
    # Every legend comes before the figures that it is for.
    assert all(later == "plot" for before, later in zip(order, order[1:]) if before != "plot")
    (diamond,) = {e.parent.text for e in found.elements if "diamond" in classes(e) and e.parent}
    assert diamond == "new peak"
    (peaks, *_) = [t for s in specs(found) if s["id"].startswith("memory") for t in s["data"] if t["mode"] == "markers"]
    assert peaks["marker"]["symbol"] == "diamond"


def test_red_means_that_ranks_hold_up_each_other(source: str) -> None:
    """Not waiting, which is what the other ranks do, and not a peak of the memory."""
    red = {spec["id"].rpartition("-")[0] for spec in specs(Page(source)) if "var(--alone)" in json.dumps(spec)}
    assert red == {"layers", "own"}
    assert len(set(re.findall(r"--(?:alone|wait|ink): (#\w+)", source))) == 6


def test_a_finding_stands_on_the_page_once(source: str) -> None:
    found = Page(source)
    listed = [e for e in found.named("li") if classes(e) and classes(e)[0] in ("attention", "plain", "good")]
    whole = found.named("main")[0].text
    for each in listed:
        text = each.text.partition(": ")[2][:60]
        assert whole.count(text) == sum(text in other.text for other in listed)


def test_numbers_stand_to_the_right_and_every_cell_has_its_heading(source: str) -> None:
    found = Page(source)
    rows: Dict[int, List[Element]] = {}
    for each in found.elements:
        if each.name in ("th", "td"):
            rows.setdefault(id(each.parent), []).append(each)
    heads: List[Element] = []
    for row in rows.values():
        heads = row if row[-1].attributes.get("scope") == "col" else heads
        assert [classes(cell) for cell in row] == [classes(head) for head in heads]
        labels = [cell.attributes.get("data-label") for cell in row]
        assert row is heads or labels == [head.text for head in heads]
    memory = next(e for e in found.named("td") if e.text.startswith("+") and e.text.endswith("GiB"))
    assert classes(memory) == ["number"]
    assert not [
        e for e in found.named("td") if classes(e) == ["number"] and e.text != "unknown" and e.text[0].isalpha()
    ]


def test_the_norm_is_drawn_and_epochs_and_samples_are_told(tmp_path: Path) -> None:
    def epoch(rank: int, step: int, row: Row) -> None:
        row["epoch"], row["samples"], row["norm"] = (step - 1) // 20, 16, 5.0 / step

    found = Page(written(traces.write(tmp_path / "run", 2, 60, change=epoch)))
    (norm,) = [spec for spec in specs(found) if spec["id"] == "norm-0"]
    assert norm["data"][-1]["y"][1] == 2.5
    assert [shape["x0"] for shape in norm["layout"]["shapes"]] == [20.5, 40.5]
    shown = [e.text for e in found.named("dd")]
    assert "2 steps/s, 64 samples/s" in shown and "0-2" in shown
    # A sampler whose epoch nobody sets stays at 0, and a loader may not tell.
    still = traces.write(tmp_path / "none", 2, 60, change=lambda rank, step, row: row.update(epoch=0))
    shown = [e.text for name in ("dt", "dd") for e in Page(written(still)).named(name)]
    assert "2 steps/s" in shown and "Epochs" not in shown


def specs(found: Page) -> List[Dict[str, Any]]:
    data = next(element for element in found.named("script") if element.attributes.get("id") == "figures")
    loaded: List[Dict[str, Any]] = json.loads(data.text)
    return loaded


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
        {"kind": "at", "time": 1.0, "step": 3, "phase": HOSTILE, "place": HOSTILE},
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
    found = Page(source)
    assert not found.comments
    assert [e.attributes.get("type") for e in found.named("script")] == ["application/json", None, None]
    assert {name for e in found.elements for name in e.attributes} <= {
        name for e in Page(written(folders[0])).elements for name in e.attributes
    }
    assert not {e.name for e in found.elements} & {"img", "b"}
    assert [e.attributes["href"][0] for e in found.named("a")] == ["#"] * len(found.named("a"))
    # It is shown all the same, as text.
    shown = HOSTILE.encode("utf-8", "replace").decode()
    assert sum(shown[:120] in element.text for element in found.named("td")) >= 5
    assert source.encode("utf-8")


def test_data_in_scripts_cannot_end_them(hostile: Path) -> None:
    found = Page(written(hostile))
    data = next(element for element in found.named("script") if element.attributes.get("id") == "figures")
    assert not set("<>&") & set(data.text)
    # Plotly reads tags in texts of figures, so that these have none either.
    for text in texts([spec["data"] for spec in specs(found)] + [spec["layout"] for spec in specs(found)]):
        assert "<" not in text.replace("<extra></extra>", "").replace("<br>", "")
    for spec in specs(found):
        for text in texts([spec["meta"].get("rows", []), spec["meta"].get("columns", [])]):
            assert "<" not in text


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value if isinstance(value, list) else value.values():
            yield from texts(each)


ODD: List[Any] = [None, True, -1, 2**70, 1e308, float("nan"), float("inf")]
ODD += ["text", "", [], [1, "x", None, -5, 2**40], {}, {"a": []}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_values_of_any_kind_end_no_report(odd: Any, tmp_path: Path) -> None:
    def change(rank: int, step: int, row: Row) -> None:
        names = [name for name in row if name != "kind"]
        row[names[(step - 2) % len(names)]] = odd

    for key in ("layers", "parameters", "class"):
        folder = traces.write(tmp_path / key, 2, 40, change=change, settings=odd, patches=odd, host=odd, world_size=odd)
        file = folder / "rank-00001.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines[1][key] = odd
        lines[-1:] = [{"kind": "event", "text": odd, "time": odd, "step": odd}, {"kind": "end", "how": odd}]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        source = written(folder)
        Page(source)
        json.dumps(command.load([folder]), allow_nan=False)


def first(found: Page, name: str) -> Element:
    return found.named(name)[0]


def test_an_empty_trace_has_a_page(tmp_path: Path) -> None:
    found = Page(written(traces.write(tmp_path / "empty", 2, 0)))
    assert "Both ranks finished after 0 steps." in first(found, "main").text
    assert not found.named("figure")
