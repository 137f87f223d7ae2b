"""Tiers, told by folder; sweeps, of which a sample is run; and tests that cannot be run here, one by one."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, Optional, Tuple

import pytest

from tests.later import later
from tests.support import compiled, off_main_thread, pool

HERE = Path(__file__).parent
# One run of pytest has one name, which its workers share. A pytest that a test starts is another run: it would wait for
# a test that waits to be alone, and that one for the test which has started it.
RUN = os.environ.pop("PYTEST_XDIST_TESTRUNUID", "")
# Hundreds of processes import the same modules: where this is set, each of them would compile all of ddpfix anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As torchrun has it for its ranks: several workers on few cores would otherwise wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# fast: no ranks. ranks: two real ones or more. cells: another environment, which `nox -s cells` makes.
TIERS: Dict[str, str] = {
    "unit": "fast",
    "cells": "fast",
    "activation": "fast",
    "orderings": "fast",
    "faults": "fast",
    "packaging": "fast",
    "benchmarks": "fast",
    "layerdrop": "fast",
    "probing": "fast",
    "report": "fast",
    "releases": "fast",
    "hostile": "fast",
    "scale": "fast",
    "accelerator": "ranks",
    "adding": "ranks",
    "demo": "ranks",
    "late": "ranks",
    "ranks": "ranks",
    "trace": "ranks",
    "sharded": "ranks",
    "upstream": "ranks",
    "gpu": "ranks",
    "harm": "ranks",
    "launchers": "ranks",
    "wenet": "ranks",
    "funasr": "cells",
    "speechbrain": "cells",
    "fastnlp": "cells",
    "torchaudio": "cells",
    "espnet": "cells",
    "s3prl": "cells",
    "nemo": "cells",
    "skipping": "ranks",
}
# Files that are in another tier than their folder.
FILES: Dict[str, str] = {
    "activation/test_real_torch": "ranks",
    "demo/test_verdict": "fast",
    "faults/test_injected": "ranks",
    "sharded/test_shards": "fast",
    "gpu/test_sections": "fast",
    "trace/test_single": "fast",
    "trace/test_writer": "fast",
}
# A folder of tests -> the package that it needs.
NEEDS: Dict[str, str] = {
    "funasr": "funasr",
    "speechbrain": "speechbrain",
    "fastnlp": "fastNLP",
    "deepspeed": "deepspeed",
    "torchaudio": "torchaudio",
    "espnet": "espnet",
    "s3prl": "s3prl",
    "nemo": "nemo",
}
# Folders with files that take long come first: a worker that begins the last of them late leaves the others idle.
LONG = (
    "late",
    "sharded",
    "orderings",
    "ranks",
    "upstream",
    "packaging",
    "demo",
    "adding",
    "skipping",
    "activation",
    "harm",
    "launchers",
    "wenet",
    "gpu",
)
HOW = "{0} is not installed here: nox -s cell -- {0}"


def folder_of(path: Path) -> str:
    """The folder of tests that a file is in; "" for one elsewhere."""
    inside = HERE in path.parents
    return path.relative_to(HERE).parts[0] if inside else ""


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--whole", action="store_true", help="run sweeps whole, and not the sample of them")
    parser.addoption("--rest", action="store_true", help="run only what sweeps leave out of their sample")
    parser.addoption("--threads", action="store_true", help="ranks run autograd in a thread of its own (tests/late)")


def tier(path: Path) -> str:
    """The tier of a file; the folder of a new toolkit has ranks."""
    folder = folder_of(path)
    return FILES.get(f"{folder}/{path.stem}", TIERS.get(folder, "ranks") if folder else "fast")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(tier(item.path))


def pytest_configure(config: Any) -> None:
    compiled.where_edited()
    if config.getoption("--threads"):
        os.environ[off_main_thread.VARIABLE] = "1"
    # pytest-xdist would begin with the files that have the most tests, which are not those that take longest.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def _turn(item: pytest.Item) -> int:
    folder = folder_of(item.path)
    return LONG.index(folder) if folder in LONG else len(LONG)


def _named(item: pytest.Item) -> Tuple[str, str]:
    """Return the file of a test, below this folder, and its function."""
    inside = HERE in item.path.parents
    return item.path.relative_to(HERE).with_suffix("").as_posix() if inside else "", item.name.partition("[")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: Any, items: List[pytest.Item]) -> None:
    items.sort(key=_turn)
    if config.getoption("--rest"):
        config.hook.pytest_deselected(items=[item for item in items if not _left_out(item)])
        items[:] = [item for item in items if _left_out(item)]
    elif not config.getoption("--whole"):
        left = [item for item in items if _left_out(item)]
        if left:
            config.hook.pytest_deselected(items=left)
            config.stash[LEFT] = Counter(folder_of(item.path) for item in left)
            items[:] = [item for item in items if not _left_out(item)]
    for item, is_later in zip(items, later(map(_named, items))):
        if is_later:
            item.add_marker("later")


@contextlib.contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Wait until a test may run: one that is to be alone until no other runs, any other until no such one runs.

    Who waits to be alone holds the gate, through which everybody passes, so that others do not go on before it.
    """
    if not RUN:
        yield
        return
    with _lock("gate") as gate, _lock("room") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _lock(name: str) -> IO[str]:
    return (Path(tempfile.gettempdir()) / f"ddpfix-{RUN}.{name}").open("w")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with turn(item.get_closest_marker("alone") is not None):
        yield


def pytest_sessionfinish() -> None:
    pool.close()


LEFT = pytest.StashKey[Dict[str, int]]()


def _left_out(item: pytest.Item) -> bool:
    """Whether a test belongs to a sweep, and not to its sample."""
    # A cell runs those marked for it as well: results of patches stand on them.
    records = bool(item.config.getoption("--record", None))
    marks = [mark.kwargs for mark in item.iter_markers("sampled")]
    return any(not mark["inside"] and not (records and mark.get("cells")) for mark in marks)


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """One line a toolkit that is not here, and one for what sweeps left out."""
    skipped: Dict[str, int] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        toolkit = NEEDS.get(folder_of(config.rootpath / report.nodeid.partition("::")[0]))
        if toolkit is not None and find_spec(toolkit) is None:
            skipped[toolkit] += 1
    for toolkit, count in skipped.items():
        terminalreporter.write_line(f"NOT RUN: {count} tests; {HOW.format(toolkit)}", yellow=True, bold=True)
    for folder, count in config.stash.get(LEFT, {}).items():
        terminalreporter.write_line(
            f"A SAMPLE of tests/{folder}: {count} tests more run under nox -s whole", yellow=True
        )


def missing(path: Path) -> Optional[str]:
    """Why the tests of a file cannot be run here; None if they can."""
    toolkit = NEEDS.get(folder_of(path))
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
