"""The lines of ddpfix in a program's own log: once, and never lost (docs/logging.md)."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import List, NamedTuple

import pytest

from tests.activation.support import start
from tests.support import ranks

PAGE = Path(__file__).parents[2] / "docs" / "logging.md"
LINE = "ddpfix 9.9: a line"
BEGINNING = "import logging, logging.config\n"
ACTIVATION = "import ddpfix; ddpfix.activate(log='info')\n"
SAYING = f"from ddpfix import log; log.info({LINE!r}); log.debug('in detail')\n"
FILE = "{'class': 'logging.FileHandler', 'filename': 'train.log'}"
ROOT = f"{{'version': 1, 'handlers': {{'file': {FILE}}}, 'root': {{'handlers': ['file'], 'level': 'INFO'}}}}"
NAMED = f"{{'version': 1, 'handlers': {{'file': {FILE}}}, 'loggers': {{'ddpfix': {{'handlers': ['file']}}}}}}"
ALONE = ROOT[:-1] + ", 'loggers': {'ddpfix': {'level': 'DEBUG'}}}"
PROPAGATE = "logging.getLogger('ddpfix').propagate = True"


class Found(NamedTuple):
    """How often the line stands where, and whether the detail is in the file."""

    stderr: int
    stdout: int
    file: int
    detail: bool = False


def said(folder: Path, *parts: str) -> Found:
    """Run a program in a process of its own; without what imports torch: ddpfix.activate() needs none."""
    words = [sys.executable, "-c", BEGINNING + "".join(f"{part}\n" for part in parts)]
    done = start(words, ranks.environment(), folder)
    assert done.returncode == 0, done.stderr
    file = folder / "train.log"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return Found(done.stderr.count(LINE), done.stdout.count(LINE), text.count(LINE), "in detail" in text)


# What a program configures, and where the line is then: if that comes after the activation, if it comes before.
CASES = {
    "nothing": ("", Found(1, 0, 0), Found(1, 0, 0)),
    "basicConfig": ("logging.basicConfig(level='DEBUG')", Found(1, 0, 0), Found(1, 0, 0)),
    "a file": ("logging.basicConfig(filename='train.log')", Found(1, 0, 0), Found(1, 0, 0)),
    "dictConfig": (f"logging.config.dictConfig({ROOT})", Found(1, 0, 0), Found(1, 0, 0)),
    "dictConfig, named": (f"logging.config.dictConfig({NAMED})", Found(0, 0, 1), Found(0, 0, 1)),
    "dictConfig, a level": (f"logging.config.dictConfig({ALONE})", Found(0, 0, 1, True), Found(1, 0, 0)),
    "a handler": (
        "logging.getLogger('ddpfix').addHandler(logging.FileHandler('train.log'))",
        Found(1, 0, 1),
        Found(0, 0, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", ("after", "before"))
def test_a_line_is_printed_once_and_not_lost(name: str, order: str, tmp_path: Path) -> None:
    text, after, before = CASES[name]
    parts = (ACTIVATION, text, SAYING) if order == "after" else (text, ACTIVATION, SAYING)
    assert said(tmp_path, *parts) == (after if order == "after" else before)


@pytest.mark.parametrize(
    ("configured", "expected"),
    (
        ("logging.basicConfig()", Found(1, 0, 0)),
        ("logging.basicConfig(filename='train.log')", Found(0, 0, 1)),
        ("import sys; logging.basicConfig(stream=sys.stdout)", Found(0, 1, 0)),
        (f"logging.config.dictConfig({ROOT})", Found(0, 0, 1)),
        # No handler of the program's: the line is printed all the same.
        ("", Found(1, 0, 0)),
    ),
)
def test_a_logger_that_propagates_leaves_its_lines_to_the_root(
    configured: str, expected: Found, tmp_path: Path
) -> None:
    assert said(tmp_path, ACTIVATION, configured, PROPAGATE, SAYING) == expected
    (tmp_path / "train.log").unlink(missing_ok=True)
    assert said(tmp_path, ACTIVATION, PROPAGATE, configured, SAYING) == expected


def test_the_level_of_a_logger_counts(tmp_path: Path) -> None:
    quiet = "logging.getLogger('ddpfix').setLevel('WARNING')"
    assert said(tmp_path, ACTIVATION, quiet, SAYING) == Found(0, 0, 0)


def blocks() -> List[str]:
    """The programs of the page."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_programs_of_the_page_put_the_line_into_a_file(tmp_path: Path) -> None:
    assert len(blocks()) == 3
    for number, text in enumerate(blocks()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert said(folder, text, SAYING).file == 1, text


def test_ddpfix_issues_no_python_warning() -> None:
    """One would end a job that turns warnings into errors; ddpfix has lines of its logger only."""
    root = PAGE.parents[1]
    sources = [*(root / "ddpfix").rglob("*.py"), *(root / "patches").rglob("*.py")]
    calls = [
        each.func
        for source in sources
        for each in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(each, ast.Call)
    ]
    assert len(calls) > 5000 and not [
        ast.unparse(call)
        for call in calls
        if isinstance(call, ast.Attribute) and call.attr in ("warn", "warn_explicit")
    ]
