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
    """A program that plain torch runs to the end that it declares.

    Args:
        name: the kind and the function's or the script's name, with a slash between them.
        run: called with rank and world size; what it returns is compared. None for a script.
        script: the name of a file in ``scripts/``, whose standard output is compared.
        arguments: of the script.
        ranks: the world size.
        group: whether the default group of gloo is there already, and destroyed afterwards.
        launcher: :data:`PLAIN`, or :data:`TORCHRUN` for a script.
        fresh: each rank is an interpreter of its own, and not the fork of one that has imported torch.
        slow: it waits for half a minute, and is in no sample.
        sample: it is run by a plain pytest.
        due: patterns of lines of ddpfix's, each of which some rank has to print.
        may: patterns of lines that it may print.
        leaves: patterns of files that it may leave in the temporary folder under ddpfix.
        settings: more variables of the environment under ddpfix.
        needs: a module that is imported before it, of a package without which it cannot be run.
        codes: the exit code of each rank; zeros by default.
    """

    name: str
    run: Any = None
    script: str = ""
    arguments: Tuple[str, ...] = ()
    ranks: int = 2
    group: bool = True
    launcher: str = PLAIN
    fresh: bool = False
    slow: bool = False
    sample: bool = False
    due: Tuple[str, ...] = ()
    may: Tuple[str, ...] = ()
    leaves: Tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    codes: Tuple[int, ...] = ()

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
    """Say more of a program than that it is one: each function of a kind that takes rank and size is.

    Args:
        about: fields of :class:`Program`.
    """

    def marked(run: Any) -> Any:
        run.about = about
        return run

    return marked


def script(kind: str, name: str, **about: Any) -> None:
    """Register a file of ``scripts/`` as a program.

    Args:
        kind: the file of ``kinds/`` that it belongs to.
        name: the file's name, without ``.py``.
        about: fields of :class:`Program`; ``variant`` is appended to the program's name.
    """
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
    """Return one program; only its kind's file is imported.

    Raises:
        KeyError: there is none of that name.
    """
    _import(name.partition("/")[0])
    return _KNOWN[name]


def chosen(words: List[str], kinds: List[str]) -> List[Program]:
    """Return the programs that are named, or those of the named kinds, or all.

    Args:
        words: names of programs, or parts of them.
        kinds: names of kinds.
    """
    known = load().values()
    if not words and not kinds:
        return list(known)
    return [each for each in known if each.kind in kinds or any(word in each.name for word in words)]
