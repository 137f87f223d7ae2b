"""The page in a real browser: no complaint, no connection, values on hover, colours, keyboard, a phone's width."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from ddpfix.cli.main import main
from ddpfix.cli.report.command import load
from tests.report.test_page import hostile
from tests.support import browser, traces
from tests.support.browser import Tab

pytestmark = [
    pytest.mark.sampled(inside=False),
    pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing())),
]
__all__ = ["hostile"]
LIMIT_SECONDS = 3.0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.started() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    place = tmp_path_factory.mktemp("traces")
    stock = traces.write(place / "stock", 4, 60, own_layers=True)
    cured = traces.write(place / "ddpfix", 4, 60)
    many = traces.write(place / "many", 70, 500, layers=12, parameters=120, own_layers=True)
    assert main(["report", str(stock)]) == 0
    assert main(["report", str(stock), str(cured)]) == 0
    assert main(["report", str(many)]) == 0
    return {"one": stock / "report.html", "two": cured / "comparison.html", "many": many / "report.html"}


@pytest.mark.parametrize("name", ["one", "two", "many"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)], ids=["desktop", "phone"])
def test_it_opens_without_a_complaint_or_a_connection(
    chromium: Any, pages: Dict[str, Path], name: str, width: int, dark: bool
) -> None:
    tab = Tab(chromium, pages[name], width, 780, dark, touch=width < 500)
    tab.ready()
    assert tab.complaints == []
    assert tab.requests == [pages[name].as_uri()]
    figures = tab.page.locator("figure").count()
    assert figures >= 6 and tab.page.locator("figure .plot .main-svg").count() >= figures
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.close()


def test_no_table_is_cut_on_a_phone(chromium: Any, pages: Dict[str, Path]) -> None:
    for name in ("two", "many"):
        tab = Tab(chromium, pages[name], 360, 800, dark=False, touch=True)
        tab.ready()
        tab.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        cut = "[...document.querySelectorAll('.scroll, .scroll *')].filter((e) => e.scrollWidth > e.clientWidth + 1"
        assert tab.page.evaluate(f"{cut} && getComputedStyle(e).display !== 'inline').length") == 0
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.close()


def test_figures_fill_their_cards_and_follow_them(chromium: Any, pages: Dict[str, Path]) -> None:
    tab = Tab(chromium, pages["two"], 1280, 800, dark=False)
    tab.ready()
    differ = (
        "() => [...document.querySelectorAll('.plot')].filter((plot) =>"
        " Math.abs(plot.querySelector('.main-svg').getBoundingClientRect().width - plot.parentElement.clientWidth) > 2)"
        ".length === 0"
    )
    tab.page.wait_for_function(differ, timeout=5000)
    # Not only where the window changes its size.
    tab.page.evaluate("document.querySelector('main').style.maxWidth = '50rem'")
    tab.page.wait_for_function(differ, timeout=5000)
    tab.close()


def test_a_phone_does_not_scroll_for_ever(chromium: Any, pages: Dict[str, Path]) -> None:
    tab = Tab(chromium, pages["two"], 390, 844, dark=False, touch=True)
    tab.ready()
    assert tab.page.evaluate("document.documentElement.scrollHeight") < 9000
    tab.close()


def hovered(tab: Tab, figure: str, across: float, down: float, expected: str) -> None:
    """Hover over a place of a figure's plot, as parts of its width and height, until the text there is as expected."""
    plot = tab.page.locator(f"#{figure} .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down, steps=3)
    told(tab, figure, expected)


def told(tab: Tab, figure: str, expected: str) -> None:
    """Wait until a hover text of a figure is as expected."""
    shown = tab.page.locator(f"#{figure} .hoverlayer .hovertext")
    until = time.monotonic() + 10
    texts: List[str] = []
    # Texts of the places that the pointer came across are replaced one after the other.
    while time.monotonic() < until:
        texts = shown.all_text_contents()
        if any(re.search(expected, text) for text in texts):
            return
        tab.page.wait_for_timeout(100)
    raise AssertionError(f"{figure}: {texts} and not {expected!r}")


def test_hover_shows_the_values(chromium: Any, pages: Dict[str, Path]) -> None:
    tab = Tab(chromium, pages["one"], 1280, 900, dark=False)
    tab.ready()
    # Sixty steps by 24 rows (six layers on four ranks): the middle of step 7, of the second rank's row of layer 2.
    row = traces.row(1, 7, 6, 24, own_layers=True)
    others = [2 in traces.row(rank, 7, 6, 24, own_layers=True)["skipped"] for rank in range(4)]
    mine = "skipped" if 2 in row["skipped"] else "ran"
    where = "on all ranks" if len(set(others)) == 1 else "here"
    hovered(tab, "layers-0", 6.5 / 60, 9.5 / 24, f"^step 7layer 2, rank 1{mine} {where}")
    hovered(tab, "time-0", 0.1, 0.9, r"^rank 3 \(straggler\): data 0.2200 s, 44 %$")
    hovered(tab, "own-0", 0.5, 0.9, r"^step \d+rank 3500.0 ms of its own$")
    hovered(tab, "unused-0", 0.5, 0.1, r"(no|a) gradient")
    hovered(tab, "loss-0", 0.5, 0.5, r"^step \d+: 0\.\d+")
    assert tab.complaints == []
    tab.close()


def test_a_new_peak_tells_its_batch(chromium: Any, pages: Dict[str, Path]) -> None:
    tab = Tab(chromium, pages["one"], 1280, 900, dark=False)
    tab.ready()
    point = tab.page.locator("#memory-0 .scatterlayer .trace").last.locator("path.point").last
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
    told(tab, "memory-0", "^step 30, rank 1: 54.0 GiB, batch 4 \u00d7 2900 \u00d7 80, 25 % padding$")
    tab.close()


def test_the_colours_follow_the_system_and_the_button(chromium: Any, pages: Dict[str, Path]) -> None:
    def colours(tab: Tab) -> Any:
        return tab.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('#time-0 .xtitle').style.fill, document.querySelector('#theme').textContent]"
        )

    seen: Dict[Any, Any] = {}
    for dark in (False, True):
        tab = Tab(chromium, pages["one"], 800, 700, dark)
        tab.ready()
        seen[dark] = colours(tab)
        tab.page.locator("#theme").focus()
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_function(
            "old => document.querySelector('#time-0 .xtitle').style.fill !== old", arg=seen[dark][1]
        )
        seen[dark, "pressed"] = colours(tab)
        tab.close()
    assert seen[False] == seen[True, "pressed"] and seen[True] == seen[False, "pressed"]
    assert seen[False][:2] != seen[True][:2]


def test_the_keyboard_reaches_everything(chromium: Any, pages: Dict[str, Path]) -> None:
    tab = Tab(chromium, pages["many"], 1280, 900, dark=False)
    tab.ready()
    reached: List[str] = []
    for _ in range(80):
        tab.page.keyboard.press("Tab")
        found = tab.page.evaluate("(e => e.className || e.id || e.tagName)(document.activeElement)")
        if found in ("skip", "BODY") and reached:
            break
        reached.append(found)
    assert reached[0] == "skip" and "theme" in reached and reached.count("SUMMARY") >= 6
    plots = tab.page.evaluate("[...document.querySelectorAll('.plot')].map((plot) => plot.className)")
    assert [each for each in reached if each.startswith("plot")] == plots
    # What the keyboard opens has the numbers.
    tab.page.locator("#time summary").first.focus()
    tab.page.keyboard.press("Enter")
    assert tab.page.locator("#time details table").first.is_visible()
    tab.close()


def test_hostile_texts_run_nothing(chromium: Any, hostile: Path) -> None:
    assert main(["report", str(hostile), "-o", str(hostile / "page.html")]) == 0
    tab = Tab(chromium, hostile / "page.html", 1280, 900, dark=False)
    tab.ready()
    for figure in ("layers-0", "time-0", "unused-0"):
        hovered(tab, figure, 0.3, 0.25, ".")
    for summary in tab.page.locator("summary").all():
        summary.click()
    assert tab.complaints == []
    assert tab.page.locator("img, svg a, script:not([type]):not(:nth-of-type(-n+3))").count() == 0
    tab.close()


def test_the_policy_stops_what_would_be_put_into_the_page(
    chromium: Any, pages: Dict[str, Path], tmp_path: Path
) -> None:
    """The escaping taken away: a script in the page does not run, and nothing is fetched."""
    source = pages["one"].read_text(encoding="utf-8")
    wrong = "<script>window.ran = 1</script><img src='https://example.invalid/x.png' onerror='window.ran = 1'>"
    target = tmp_path / "wrong.html"
    target.write_text(source.replace("<main", f"{wrong}<main"), encoding="utf-8")
    tab = Tab(chromium, target, 800, 700, dark=False)
    tab.ready()
    assert tab.page.evaluate("window.ran") is None
    assert len(tab.complaints) >= 2 and all("Content Security Policy" in each for each in tab.complaints)
    tab.close()


def test_the_page_of_many_ranks_and_steps_opens_in_three_seconds(chromium: Any, tmp_path: Path) -> None:
    """As many cells as 4,096 ranks and 10,000 steps have: figures do not grow with either.

    Seconds of the page's main thread, which other work on the machine does not change.
    """
    folder = traces.write(tmp_path / "large", 400, 400, layers=24, parameters=96, own_layers=True)
    assert main(["report", str(folder)]) == 0
    found = load([folder])[0]
    assert (len(found["columns"]), len(found["rank_rows"])) == (400, 200)
    tab = Tab(chromium, folder / "report.html", 1280, 900, dark=False)
    tab.ready()
    assert tab.seconds() < LIMIT_SECONDS
    tab.close()
