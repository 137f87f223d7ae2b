"""``python -m tests.gpu`` on a machine without a GPU: it runs what can be run there and names the rest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from tests.gpu import __main__, launch
from tests.gpu.catalogue import everything
from tests.gpu.sections import SECTIONS

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.sampled(inside=False),
    # The command has time limits of its own.
    pytest.mark.alone,
    pytest.mark.skipif(torch.cuda.is_available(), reason="what is left out here is for machines without a GPU"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a quick run leaves: no check fails, and what needs a card is not run."""
    made = Path(tmp_path_factory.mktemp("gpu")) / "out"
    ran = command(made, "9")
    assert ran.returncode == __main__.NOT_RUN, ran.stdout + ran.stderr[-6000:]
    assert (made / "gpu.md").read_text(encoding="utf-8").strip() == ran.stdout.strip()
    return made


def command(folder: Path, minutes: str) -> Any:
    words = [sys.executable, "-m", "tests.gpu", "--quick", "--minutes", minutes, "--out", str(folder)]
    return subprocess.run(words, env=launch.environment(), capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def written(folder: Path) -> str:
    return (folder / "gpu.md").read_text(encoding="utf-8")


def rows(text: str, title: str) -> List[List[str]]:
    """The cells of a section's table, without its head; none where the section is not there."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    lines = [line for line in section.group(1).splitlines() if line.startswith("| ")] if section else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_exactness_is_shown(written: str) -> None:
    found = rows(written, SECTIONS["exactness"].title)
    assert {"flag", "find", "late"} <= {row[2] for row in found}
    assert all(row[0] == "gloo, 2 ranks" and row[-1] == "ok" for row in found)
    # Checkpoints beside LayerDrop.
    assert sum("reentrant" in row[1] for row in found) == 4
    assert re.search(r"^\d+ of \d+ cells were not run \(.*needs a CUDA device \d+", written, re.M)
    assert "All checks passed." not in written
    assert f"| torch, python | {torch.__version__}, " in written and "| device | no CUDA device |" in written


@pytest.mark.parametrize("section", ["loops", "streams", "graphs", "trace", "hangs", "starts", "memory", "syncs"])
def test_each_cell_of_a_card_is_run_on_the_cpu(written: str, section: str) -> None:
    """The same lines, with small sizes; what only a card shows is not judged."""
    cells = everything({**dict.fromkeys(("cuda", "devices", "triton", "funasr"), 0)}, True)
    expected = [cell for cell in cells if (cell.section, cell.group) == (section, "gloo2")]
    found = rows(written, SECTIONS[section].title)
    assert len(found) == len(expected) > 0 and all(row[-1] == "ok" for row in found)


def test_the_table_is_written(folder: Path) -> None:
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "no CUDA device: the figures mean nothing" in text
    assert [row.split("|")[3].strip() for row in text.splitlines()[4:]] == ["flag", "auto", "late"]


def test_what_ran_is_not_run_again(folder: Path, written: str) -> None:
    """A second call finds everything that can be run here, and takes no time."""
    again = command(folder, "0.2")
    assert again.returncode == __main__.NOT_RUN and "no time was left" not in again.stdout
    changing = re.compile(r"^(\| date .*|Took .*)$", re.M)
    assert changing.sub("", again.stdout.strip()) == changing.sub("", written.strip())


def test_every_section_is_run_or_left_out(written: str) -> None:
    before, _, left_out = written.partition("## Left out")
    for section in SECTIONS.values():
        assert f"## {section.title}\n" in before or f"- {section.title} (" in left_out
