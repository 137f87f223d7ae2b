"""Traces that no job has written: a TraceError and nothing else, and no text of theirs that runs or commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpfix.cli.main import main
from tests.hostile import values
from tests.support import traces

LINES: List[Dict[str, Any]] = []


@pytest.fixture(scope="module", autouse=True)
def lines(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = traces.write(tmp_path_factory.mktemp("whole"), 1, 4, own_layers=True)
    LINES[:] = [json.loads(line) for line in (folder / "rank-00000.jsonl").read_text().splitlines()]
    LINES.append({"kind": "at", "time": 1.0, "step": 1, "phase": "data", "place": "a.py:1"})
    LINES.append({"kind": "event", "time": 1.0, "step": 3, "level": "error", "text": "it fails"})


def look(folder: Path) -> str:
    """The data of the report, which ends with a result or with one line."""
    code, data, said = values.called(["report", str(folder), "--json", "-"])
    assert code in (0, 2) and (code == 0) == (not said) and said.count("\n") <= 1
    assert not values.commands(data) and not values.commands(said)
    return data


def write(folder: Path, rows: List[Any], end: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rank-00000.jsonl").write_bytes(text.encode() + end)
    return folder


def plain(value: Any) -> Any:
    """A value that JSON can hold."""
    try:
        json.loads(json.dumps(value))
    except ValueError:
        return "x"
    return value


@settings(values.FEW, max_examples=25)
@given(change=values.values, place=st.tuples(st.integers(0, 20), st.integers(0, 30), st.integers(0, 9)))
def test_one_value_is_another_one(tmp_path_factory: pytest.TempPathFactory, change: Any, place: Any) -> None:
    look(write(tmp_path_factory.getbasetemp() / "one", values.with_one_changed(LINES, plain(change), list(place))))


KINDS = st.sampled_from(["run", "model", "step", "event", "setting", "patches", "at", "end", "x"])
KEYS = "time step total how phase level text started pid host command world_size version loss data layers parameters"
ANY = st.fixed_dictionaries(
    {"kind": KINDS}, optional={name: values.values.map(lambda value: plain(value)) for name in KEYS.split()}
)


@settings(values.FEW, max_examples=20)
@given(rows=st.lists(ANY, max_size=5), end=st.binary(max_size=9))
@example(rows=[{"kind": "end", "how": "[/]"}], end=b"")
@example(rows=[{"kind": "step", "step": 1, "time": "[red]"}], end=b"")
@example(rows=[{"kind": "run", "version": 1, "world_size": 10**18, "command": "\x1b]0;x\x07"}], end=b"")
@example(rows=[{"kind": "at"}, {"kind": "event", "level": "error"}], end=b"")
def test_lines_of_any_kind(tmp_path_factory: pytest.TempPathFactory, rows: List[Any], end: bytes) -> None:
    look(write(tmp_path_factory.getbasetemp() / "any", rows, end))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000 + b"\n",
        b'{"kind":' * 20_000 + b"\n",
        b'{"kind": "step", "step": ' + b"9" * 10_000 + b"}\n",
        b'{"kind": "step", "step": 1e999, "time": NaN}\n',
        b'{"kind": "\\ud800"}\n',
        b"\xff\xfe\n",
        b"\0\n",
        b"\n\n\n",
        b'{"kind": "run", "version": "' + b"x" * 100_000 + b'"}\n',
    ],
    ids=lambda content: ascii(content[:20]),
)
def test_tricks_of_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank-00000.jsonl").write_bytes(content)
    look(tmp_path)


@pytest.mark.parametrize("kind", values.ODD)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    values.put_odd(tmp_path / "rank-00000.jsonl", kind)
    look(tmp_path)


def test_names_of_folders_and_ranks(tmp_path: Path) -> None:
    for name in ("[/]", "\x1b[31m", "\udcff", "<b>"):
        try:
            folder = write(tmp_path / name, LINES)
        except OSError:
            continue
        assert look(folder)
        look(tmp_path / name / "missing")
    folder = write(tmp_path / "ranks", LINES)
    (folder / f"rank-{'9' * 60}.jsonl").write_bytes((folder / "rank-00000.jsonl").read_bytes())
    look(folder)


def test_texts_are_shown_and_do_nothing(tmp_path: Path) -> None:
    trick = "[bold]x[/bold] \x1b]0;title\x07 [/] <script>"
    folder = write(tmp_path / "t", [{**LINES[0], "command": trick}, {"kind": "end", "how": trick, "time": 1.0}])
    assert "[bold]x[/bold]" in look(folder)


def test_the_page_has_no_element_of_a_trace(tmp_path: Path) -> None:
    """tests/report has the same for each text of a trace; here for all tricks, as texts and as names."""
    rows = [{**LINES[0], "command": trick, trick or "x": trick} for trick in values.TRICKS]
    events = [{"kind": "event", "time": 1.0, "step": 1, "level": "error", "text": trick} for trick in values.TRICKS]
    folder = write(tmp_path / "<img src=x onerror=alert(1)>", [*LINES[:-3], rows[20], *events])
    assert main(["report", str(folder)]) == 0
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<img|<script>alert|<script[^>]*>alert", source)
