"""docs/adding-a-toolkit.md, followed step by step in a copy of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-a-toolkit.md"
COPIED = ("ddpfix", "patches", "docs", "compat_matrix.yaml", "README.md", "CONTRIBUTING.md", "pyproject.toml")
METADATA = "Metadata-Version: 2.1\nName: toykit\nVersion: 1.0\n"
# A file's name in front of a block of code.
FILE = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```\w+\n(.*?)```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^# (\w+):\n", re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the page's files and its block of the matrix are."""
    here = tmp_path_factory.mktemp("adding") / "checkout"
    here.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, here / name)  # type: ignore[operator]
    for name in ("__init__.py", "faults", "ranks", "results", "support", "unit", "upstream"):
        copy = shutil.copytree if (ROOT / "tests" / name).is_dir() else shutil.copy
        (here / "tests").mkdir(exist_ok=True)
        copy(ROOT / "tests" / name, here / "tests" / name)  # type: ignore[operator]
    files: Dict[str, str] = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))
    block = files.pop("compat_matrix.yaml")
    installed = packages(here.parent / "env")
    for name, text in files.items():
        path = (installed if name.startswith("toykit/") else here) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (installed / "toykit-1.0.dist-info").mkdir()
    (installed / "toykit-1.0.dist-info" / "METADATA").write_text(METADATA)
    matrix = (here / "compat_matrix.yaml").read_text(encoding="utf-8")
    _, *parts = HEADING.split(block)
    for heading, lines in zip(parts[::2], parts[1::2]):
        assert f"\n{heading}:\n" in matrix
        matrix = matrix.replace(f"\n{heading}:\n", f"\n{heading}:\n{lines}", 1)
    (here / "compat_matrix.yaml").write_text(matrix, encoding="utf-8")
    return here


def packages(env: Path) -> Path:
    """The packages of a new environment that has all that this one has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (folder,) = env.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "more.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    return folder


def commands() -> List[List[str]]:
    last = PAGE.read_text(encoding="utf-8").rpartition("```\npython")[2]
    lines = ("python" + last).partition("```")[0].strip().splitlines()
    return [line.partition(" #")[0].split() for line in lines]


def run(checkout: Path, words: List[str]) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    # In front of this checkout, which may be installed.
    environ["PYTHONPATH"] = str(checkout)
    environ["COLUMNS"] = "300"
    done = subprocess.run(
        [str(checkout.parent / "env" / "bin" / "python"), *words[1:]],
        cwd=str(checkout),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_page_leads_to_a_toolkit_that_works(checkout: Path) -> None:
    tested, plan, explained, generated, _ = [run(checkout, words) for words in commands()]
    noted = json.loads((checkout / "tests" / "results" / "toykit-1.0.json").read_text(encoding="utf-8"))
    assert noted["patches"] == ["toykit.layerdrop", "toykit.options"] and (noted["passed"], noted["failed"]) == (3, 0)
    (line,) = [line for line in plan.splitlines() if "toykit 1.0" in line]
    assert "apply" in line and "toykit.layerdrop, toykit.options" in line
    assert "ranks skip different layers" in explained
    assert "3 passed" in tested
    table = (checkout / "README.md").read_text(encoding="utf-8")
    assert "| [toykit](docs/toykit.md) | 1.0 | 2 | LayerDrop in step on all ranks" in table, generated
    decided = json.loads((checkout / "tests" / "unit" / "fixtures" / "decisions.json").read_text(encoding="utf-8"))
    assert "1.0" in decided["versions"]["toykit"] and "toykit.options" in decided["patches"]


@pytest.mark.sampled(inside=False)
def test_the_test_of_the_page_fails_without_the_patches(checkout: Path) -> None:
    """What the page's own tests show is the patches' work."""
    matrix = checkout / "compat_matrix.yaml"
    text = matrix.read_text(encoding="utf-8")
    away = text.replace('from: "1.0"\n        to: "2.0"', 'from: "3.0"\n        to: "4.0"')
    assert away.count('to: "4.0"') == text.count('to: "4.0"') + 2
    matrix.write_text(away, encoding="utf-8")
    try:
        with pytest.raises(AssertionError, match="1 failed"):
            run(checkout, ["python", "-m", "pytest", "tests/toykit", "-k", "in_step"])
    finally:
        matrix.write_text(text, encoding="utf-8")
