"""``python -m tests.gpu`` on a machine without a GPU: it runs what can be run there and names the rest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from tests.gpu import launch
from tests.gpu.report import TITLES

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.sampled(inside=False),
    # The command has time limits of its own.
    pytest.mark.alone,
    pytest.mark.skipif(torch.cuda.is_available(), reason="what is left out here is for machines without a GPU"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Markdown of a quick run, which has to succeed."""
    file = Path(tmp_path_factory.mktemp("gpu")) / "table.md"
    command = [sys.executable, "-m", "tests.gpu", "--quick", "--seconds", "100", "--out", str(file)]
    ran = subprocess.run(command, env=launch.environment(), capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-6000:]
    text = file.read_text(encoding="utf-8")
    assert text.strip() == ran.stdout.strip()
    return text


def rows(text: str, title: str) -> List[List[str]]:
    """The cells of a section's table, without its head; none where the section is not there."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    lines = [line for line in section.group(1).splitlines() if line.startswith("| ")] if section else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_exactness_is_shown(written: str) -> None:
    found = rows(written, TITLES["exactness"])
    assert {"flag", "find", "late"} <= {row[2] for row in found}
    assert all(row[0] == "gloo, 2 ranks" and row[-1] == "ok" for row in found)
    assert "All checks passed." in written


def test_the_machine_is_named(written: str) -> None:
    assert f"| torch, python | {torch.__version__}, " in written and "| device | no CUDA device |" in written


@pytest.mark.parametrize(
    "expected",
    [
        "- Exactness (NCCL, 1 rank): needs a CUDA device",
        "- Host-device synchronisations a step (NCCL, 1 rank): needs a CUDA device",
        "- Mixed precision (gloo, 2 ranks): autocast to float16 with loss scaling needs a CUDA device",
        "- Step time and memory (NCCL, 1 rank): needs a CUDA device",
        "peak memory, need a CUDA device",
    ],
)
def test_what_is_left_out_is_named(written: str, expected: str) -> None:
    assert expected in written.partition("## Left out")[2]


def test_every_section_is_run_or_left_out(written: str) -> None:
    before, _, left_out = written.partition("## Left out")
    for title in TITLES.values():
        assert f"## {title}\n" in before or f"- {title} (" in left_out
