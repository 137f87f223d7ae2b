"""The head of the page, what is folded or left out, and ``--open``."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddpfix.cli.main import main
from ddpfix.cli.report import page
from tests.report.test_page import SCRIPT, written
from tests.support import traces
from tests.support.pages import Element, Page
from tests.support.traces import Row

LINES: List[Dict[str, Any]] = [
    {"kind": "event", "time": 1.7e9, "step": 0, "level": "info", "text": "ddpfix 1.0.0: 1 fix in use for torch 2.13.0"},
    {"kind": "event", "time": 1.7e9, "step": 0, "level": "info", "text": "all ranks skip the same layers of WavLM"},
]


def facts(element: Page) -> Dict[str, List[str]]:
    """Return the values of each name in the head."""
    found: Dict[str, List[str]] = {}
    for name, value in zip(element.named("dt"), element.named("dd")):
        found.setdefault(name.text, []).append(value.text)
    return found


def text_of(found: Page, name: str) -> str:
    return next(e for e in found.elements if e.attributes.get("class") == name).text


def test_the_head_has_what_ran_when_and_how_fast(tmp_path: Path) -> None:
    folder = traces.write(
        tmp_path / "run", 2, 60, command="/home/me/exp/train.py --lr '1e-4'", lines=lambda rank: LINES
    )
    found = Page(written(folder))
    assert facts(found) == {
        "Command": ["train.py --lr '1e-4'"],
        "Started": ["2023-11-14 22:13 UTC"],
        "Duration": ["30.0 s"],
        "Steps": ["60"],
        "Speed": ["2 steps/s"],
        "Ranks": ["2 on 1 host"],
        "Versions": ["torch 2.13.0, transformers 5.23.0, Python 3.11.2"],
    }
    assert text_of(found, "did") == (
        "ddpfix 0.1.0 had 1 fix ready and logged: all ranks skip the same layers of WavLM."
    )
    # The whole command is further below.
    assert any("/home/me/exp/train.py" in cell.text for cell in found.named("td"))


def test_what_two_runs_have_in_common_stands_in_the_head_once(tmp_path: Path) -> None:
    def twice(rank: int, step: int, row: Row) -> None:
        row["total"] *= 2

    folders = [traces.write(tmp_path / "one", 2, 20), traces.write(tmp_path / "two", 2, 20, change=twice)]
    found = facts(Page(written(*folders)))
    assert len(found["Versions"]) == len(found["Steps"]) == 1
    assert found["Speed"] == ["2 steps/s", "1 step/s"]


@pytest.mark.parametrize("value", [None, -1, 0, 1e20, "soon", float("nan")])
def test_a_start_that_is_no_date_is_left_out(value: Any, tmp_path: Path) -> None:
    found = facts(Page(written(traces.write(tmp_path / "run", 1, 5, started=value))))
    assert "Started" not in found and "Duration" not in found


def folded(element: Element) -> bool:
    return element.inside("details")


def test_defaults_and_fixes_are_folded(tmp_path: Path) -> None:
    found = Page(written(traces.write(tmp_path / "run", 2, 5)))
    rows = {row.text: row for row in found.named("tr")}
    assert not folded(rows["unusedfind (DDPFIX_UNUSED)"]) and folded(rows["loginfo"])
    assert folded(next(row for text, row in rows.items() if text.startswith("transformers.layerdrop")))
    assert [each.attributes.get("open") for each in found.named("details")] == [None] * len(found.named("details"))


def test_settings_of_two_runs_are_one_table(tmp_path: Path) -> None:
    more = {"unused": {"value": "auto", "from": "default"}, "log": {"value": "info", "from": "default"}}
    folders = [traces.write(tmp_path / "one", 1, 5), traces.write(tmp_path / "two", 1, 5, settings=more)]
    rows = [row.text for row in Page(written(*folders)).named("tr")]
    assert "unusedfind (DDPFIX_UNUSED)auto (default)" in rows and "loginfoinfo" in rows


def test_figures_of_a_single_step_become_a_sentence(tmp_path: Path) -> None:
    def skip(rank: int, step: int, row: Row) -> None:
        row["skipped"], row["unused"] = [2], [8]

    found = Page(written(traces.write(tmp_path / "run", 2, 1, change=skip)))
    assert text_of(found, "absent") == (
        "Not shown: memory (only one step); loss and gradient norm (only one step); unused parameters (only one step)."
    )
    assert not [e for e in found.elements if e.attributes.get("id") in ("memory", "loss", "unused", "own-0")]
    assert not any(e.attributes["href"] == "#loss" for e in found.named("a"))


def test_layers_that_never_are_skipped_have_no_figure(tmp_path: Path) -> None:
    found = Page(written(traces.write(tmp_path / "run", 2, 20, change=lambda rank, step, row: row.update(skipped=[]))))
    assert "No layer was skipped in 20 steps." in found.named("main")[0].text
    assert "skipped layers (no layer was skipped)" in text_of(found, "absent")


def colours() -> Dict[str, Dict[str, str]]:
    """Return the colours of the page by name, light and dark."""
    source = Path(page.__file__).with_name("assets").joinpath("page.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in source.split("color-scheme: ")[1:3])
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read_on_their_ground(theme: str) -> None:
    found = colours()[theme]
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "link", "bad", "good"):
            bright, other = sorted((luminance(found[text]), luminance(found[ground])), reverse=True)
            assert (bright + 0.05) / (other + 0.05) >= 4.5, (text, ground)


@pytest.fixture
def plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpfix.cli.report import command

    monkeypatch.setattr(command, "_plotly", lambda: SCRIPT)


@pytest.mark.usefixtures("plotly")
def test_the_page_is_opened_in_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: List[str] = []

    def opening(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opening)
    monkeypatch.setenv("DISPLAY", ":0")
    folder = traces.write(tmp_path / "run", 1, 5)
    assert main(["report", str(folder)]) == 0 and opened == []
    assert main(["report", str(folder), "--open"]) == 0
    assert opened == [(folder / "report.html").resolve().as_uri()]
    # Beside --json, which makes no page by itself.
    other = tmp_path / "page.html"
    assert main(["report", str(folder), "--json", str(tmp_path / "data.json"), "--open", "-o", str(other)]) == 0
    assert opened[1:] == [other.resolve().as_uri()]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("plotly")
@pytest.mark.parametrize("screen", [True, False])
def test_without_a_browser_a_line_says_so(
    screen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(address: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if screen:
        monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", fails)
    folder = traces.write(tmp_path / "run", 1, 5)
    assert main(["report", str(folder), "--open"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{folder / 'report.html'}\n"
    assert captured.err.startswith("ddpfix: no browser here: copy the page")
