"""A copy of the checkout, in which a page of docs/ is followed word by word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Dict, List, Sequence

ROOT = Path(__file__).parents[2]
COPIED = ("ddpfix", "patches", "docs", "compat_matrix.yaml", "README.md", "CONTRIBUTING.md", "pyproject.toml")
TESTS = ("releases", "__init__.py", "faults", "ranks", "results", "support", "unit", "upstream")
# A file's name in front of a block of code.
FILE = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```\w+\n(.*?)```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^# (\w+):\n", re.MULTILINE)


def blocks(page: Path) -> Dict[str, str]:
    """The blocks of code of a page, by the file that each is for."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def copied(here: Path, tests: Sequence[str] = TESTS) -> None:
    """Make the copy."""
    here.mkdir()
    for name in [*COPIED, *(f"tests/{each}" for each in tests)]:
        (here / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, here / name)  # type: ignore[operator]


def write(here: Path, name: str, text: str) -> None:
    """Write a file of the page."""
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def add_to_matrix(here: Path, block: str) -> None:
    """Put the parts of a block below the headings that they are for."""
    matrix = (here / "compat_matrix.yaml").read_text(encoding="utf-8")
    _, *parts = HEADING.split(block)
    for heading, lines in zip(parts[::2], parts[1::2]):
        assert f"\n{heading}:\n" in matrix
        matrix = matrix.replace(f"\n{heading}:\n", f"\n{heading}:\n{lines}", 1)
    (here / "compat_matrix.yaml").write_text(matrix, encoding="utf-8")


def packages(env: Path) -> Path:
    """The packages of a new environment that has all that this one has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (folder,) = env.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "more.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    return folder


def commands(page: Path) -> List[List[str]]:
    """The last commands of a page, as words."""
    last = page.read_text(encoding="utf-8").rpartition("```\npython")[2]
    lines = ("python" + last).partition("```")[0].strip().splitlines()
    return [line.partition(" #")[0].split() for line in lines]


def run(checkout: Path, words: List[str]) -> str:
    """Run a command of the page in the copy; returns what it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    # In front of this checkout, which may be installed.
    environ["PYTHONPATH"] = str(checkout)
    environ["COLUMNS"] = "300"
    # Where a test does not end, the stacks say in what.
    environ["PYTEST_ADDOPTS"] = "-o faulthandler_timeout=120"
    done = subprocess.Popen(
        [str(checkout.parent / "env" / "bin" / "python"), *words[1:]],
        cwd=str(checkout),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(400, done.kill)
    timer.start()
    printed, _ = done.communicate()
    timer.cancel()
    assert done.returncode == 0, printed
    return printed
