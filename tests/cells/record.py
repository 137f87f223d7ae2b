"""A plugin of pytest that writes down how the tests of a run ended: ``-p tests.cells.record --record FILE``.

It runs in the environment of a cell, beside whatever release of pytest is there.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Set, Tuple

import pytest

from ddpfix.matrix import loader


class Record:
    """Counts the tests of a run, and for each patch those that stand for it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.left = 0
        self.outcomes: Dict[str, str] = {}
        self.patches: Dict[str, Set[str]] = {}

    # What conftest leaves out is gone by then.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> None:
        kept = sample(items, config.getoption("--sample"), config.getoption("--turn"))
        self.left = len(items) - len(kept)
        if self.left:
            config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_setup(self, item: Any) -> None:
        self.patches[item.nodeid] = {*marked(item)}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif report.skipped or report.when == "call":
            self.outcomes.setdefault(report.nodeid, report.outcome)

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps(self.found(), indent=1) + "\n", encoding="utf-8")

    def found(self) -> Dict[str, Any]:
        """The record: packages, counts, and the patches whose tests passed and failed."""
        ended = {outcome: self._of(outcome) for outcome in ("passed", "failed", "skipped")}
        return {
            "python": "{}.{}.{}".format(*sys.version_info),
            "packages": versions(),
            **{outcome: len(tests) for outcome, tests in ended.items()},
            "left": self.left,
            "patches": sorted(self._patches(ended["passed"])),
            "broken": sorted(self._patches(ended["failed"])),
            "failures": sorted(ended["failed"]),
        }

    def _of(self, outcome: str) -> Set[str]:
        return {test for test, how in self.outcomes.items() if how == outcome}

    def _patches(self, tests: Set[str]) -> Set[str]:
        return {name for test in tests for name in self.patches.get(test, ())}


def marked(item: Any) -> FrozenSet[str]:
    """The patches that a test stands for."""
    return frozenset(name for mark in item.iter_markers("patches") for name in mark.args)


def sample(items: List[Any], size: int, turn: int) -> List[Any]:
    """One in ``size`` of the tests of each file that stand for the same patches, and at least one of them.

    ``turn`` says at which of them to begin: cells with other turns have other tests, and ``size`` of them have all.
    """
    groups: Dict[Tuple[str, FrozenSet[str]], List[Any]] = {}
    for item in items:
        groups.setdefault((item.nodeid.partition("::")[0], marked(item)), []).append(item)
    kept = {id(item) for group in groups.values() for item in group[turn % min(size, len(group)) :: size]}
    return [item for item in items if id(item) in kept]


def versions() -> Dict[str, str]:
    """The releases that are here of what decides about a patch: distributions, as their metadata spells them."""
    found = {}
    for name in sorted({*loader.load().toolkits.values(), "lightning", "numpy"}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--record", type=Path, help="where to write how the tests ended")
    parser.addoption("--sample", type=int, default=1, help="run one in so many tests of each file and patch")
    parser.addoption("--turn", type=int, default=0, help="which ones, of the sample's size")


def pytest_configure(config: Any) -> None:
    file = config.getoption("--record")
    if file is not None:
        config.pluginmanager.register(Record(file.resolve()), "record of a cell")
