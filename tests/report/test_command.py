"""``python -m ddpfix report``: files that it writes, and what it says where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from ddpfix.cli.main import main
from tests.support import traces


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return traces.write(tmp_path / "trace", 2, 12)


def test_the_page_lies_in_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    assert main(["report", str(folder)]) == 0
    target = folder / "report.html"
    assert capsys.readouterr().out == f"{target}\n"
    text = target.read_text(encoding="utf-8")
    assert "plotly.js v" in text and len(text) < 6_000_000
    # A trace with a report in it is read as before.
    assert main(["report", str(folder), "--json", str(folder / "data.json")]) == 0


def test_two_runs_have_a_page_in_the_second_folder(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    other = traces.write(tmp_path / "more" / "trace", 2, 12)
    assert main(["report", str(folder), str(other)]) == 0
    text = (other / "comparison.html").read_text(encoding="utf-8")
    assert "trace (1)" in text and "trace (2)" in text


def test_json_has_the_data_and_needs_no_plotly_and_a_page_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(folder), str(folder), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == 1 and [run["steps"] for run in found["runs"]] == [12, 12]
    ratios = {each["name"]: each["ratio"] for each in found["comparison"]}
    assert ratios["time per step"] == 1.0
    assert {each["level"] for each in found["runs"][0]["findings"]} <= {"good", "plain", "attention"}
    assert not list(folder.glob("*.html"))
    assert main(["report", str(folder)]) == 2
    assert "pip install 'ddpfix[report]'" in capsys.readouterr().err


def test_without_numpy_the_package_is_named(folder: Path) -> None:
    code = "import sys; sys.modules['numpy'] = None; from ddpfix.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(folder), "--json", "-"]
    done = subprocess.run(command, cwd=str(Path(__file__).parents[2]), capture_output=True, text=True)
    assert done.returncode == 2 and "this command needs numpy" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{missing}"], "{missing}"),
        (["{empty}"], "no trace here"),
        (["{folder}"] * 3, "takes one trace or two, not 3"),
        (["{damaged}"], "rank-00000.jsonl, line 3"),
        (["{folder}", "-o", "{missing}/page.html"], "{missing}/page.html"),
    ],
)
def test_what_cannot_be_read_or_written_is_named(
    words: List[str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    damaged = traces.write(tmp_path / "damaged", 1, 5)
    file = damaged / "rank-00000.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], "{not json", *lines[3:]]) + "\n")
    (tmp_path / "empty").mkdir()
    places = {"missing": tmp_path / "missing", "empty": tmp_path / "empty", "folder": folder, "damaged": damaged}
    assert main(["report", *(word.format(**places) for word in words)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ddpfix: ") and told.count("\n") == 1
    assert said.format(**places) in told
