"""Tests of a toolkit that is not installed are skipped one by one, with the command that runs them."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import pytest

# A folder of tests -> the package that it needs, and the command that runs it where that is installed.
NEEDS: Dict[str, str] = {"funasr": "funasr", "speechbrain": "speechbrain", "fastnlp": "fastNLP"}
HOW = "{0} is not installed: python -m tests.cells {0} runs this on each release"


def missing(path: Path) -> Optional[str]:
    """Why the tests of a file cannot be run here; None if they can."""
    toolkit = NEEDS.get(path.parent.name) if path.parent.parent == Path(__file__).parent else None
    return HOW.format(toolkit) if toolkit is not None and find_spec(toolkit) is None else None


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Optional[Any]:
    """A file that cannot be imported here is read instead."""
    return Unrunnable.from_parent(parent, path=module_path) if missing(module_path) is not None else None


class Unrunnable(pytest.File):
    """The tests that a file has, as its source says; a parametrized one counts once."""

    def collect(self) -> Iterator[pytest.Item]:
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield Skipped.from_parent(self, name=node.name)


class Skipped(pytest.Item):
    def runtest(self) -> None:
        pytest.skip(missing(self.path) or "")
