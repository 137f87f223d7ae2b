"""What a program of the suite is, and the table of all of them."""

from __future__ import annotations

import functools
import importlib
import inspect
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
# The environment, in one process and in the ranks of torch elastic.
PLAIN, TORCHRUN = "plain", "torchrun"


@dataclass(frozen=True)
class Program:
    """A program that plain torch runs to the end that it declares."""

    name: str  # the kind and the function's or the script's name, with a slash between them
    run: Any = None  # called with rank and world size; what it returns is compared. None for a script
    script: str = ""  # the name of a file in ``scripts/``, whose standard output is compared
    arguments: Tuple[str, ...] = ()  # of the script
    ranks: int = 2  # the world size
    group: bool = True  # whether the default group of gloo is there already, and destroyed afterwards
    launcher: str = PLAIN  # :data:`PLAIN`, or :data:`TORCHRUN` for a script
    fresh: bool = False  # each rank is an interpreter of its own, and not the fork of one that has imported torch
    slow: bool = False  # it waits for half a minute, and is in no sample
    sample: bool = False  # it is run by a plain pytest
    due: Tuple[str, ...] = ()  # patterns of lines of ddpfix's, each of which some rank has to print
    may: Tuple[str, ...] = ()  # patterns of lines that it may print
    leaves: Tuple[str, ...] = ()  # patterns of files that it may leave in the temporary folder under ddpfix
    settings: Mapping[str, str] = field(default_factory=dict)  # more variables of the environment under ddpfix
    needs: str = ""  # a module that is imported before it, of a package without which it cannot be run
    codes: Tuple[int, ...] = ()  # the exit code of each rank; zeros by default

    @property
    def available(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.needs or find_spec(self.needs.partition(".")[0]) is not None

    @property
    def kind(self) -> str:
        """The file that it stands in."""
        return self.name.partition("/")[0]


_KNOWN: Dict[str, Program] = {}


def program(**about: Any) -> Callable[[Callable[[int, int], Any]], Callable[[int, int], Any]]:
    """Say more of a program, in fields of :class:`Program`; each function of a kind that takes rank and size is one."""

    def marked(run: Any) -> Any:
        run.about = about
        return run

    return marked


def script(kind: str, name: str, **about: Any) -> None:
    """Register a file of ``scripts/`` as a program of a kind; a ``variant`` is appended to the program's name."""
    variant = about.pop("variant", "")
    _add(Program(f"{kind}/{name}{variant and '-' + variant}", script=f"{name}.py", **about))


def _add(one: Program) -> None:
    if one.name in _KNOWN:
        raise ValueError(f"two programs are called {one.name}")
    _KNOWN[one.name] = one


@functools.lru_cache(maxsize=None)
def _import(kind: str) -> None:
    """Import a kind's file, and register its functions of rank and size."""
    module = importlib.import_module(f"tests.harm.kinds.{kind}")
    for run in vars(module).values():
        own = inspect.isfunction(run) and run.__module__ == module.__name__
        if own and [*inspect.signature(run).parameters] == ["rank", "size"]:
            _add(Program(f"{kind}/{run.__name__}", run, **getattr(run, "about", {})))


def load() -> Dict[str, Program]:
    """Return all programs by name, kinds in the order of their files."""
    for file in sorted((HERE / "kinds").glob("*.py")):
        if file.stem != "__init__":
            _import(file.stem)
    return dict(_KNOWN)


def one(name: str) -> Program:
    """Return one program; only its kind's file is imported."""
    _import(name.partition("/")[0])
    return _KNOWN[name]


def chosen(words: List[str], kinds: List[str]) -> List[Program]:
    """Return the programs whose names have one of these words, or those of the named kinds, or all."""
    known = load().values()
    if not words and not kinds:
        return list(known)
    return [each for each in known if each.kind in kinds or any(word in each.name for word in words)]
