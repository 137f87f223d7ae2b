"""A name that FunASR's tables do not have is named, with its key, where FunASR calls the None that it got instead.

``class = tables.dataset_classes.get(name)`` is None for an unknown name, and the next line says "'NoneType' object is
not callable". Classes may be registered until then (``remote_code``), so nothing is said before.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

from ddpfix.matrix.settings import near
from ddpfix.monitor.last_words import explained

from .entry import leaves

if TYPE_CHECKING:
    from .entry import Run

_CLASS, _TABLE = "_class", "_classes"
_MOST = 120


@contextlib.contextmanager
def named(run: Run) -> Iterator[None]:
    """While ``main`` runs, explain an error that an unknown name leads to."""
    with explained(lambda error: _unknown(run, error)):
        yield


def _unknown(run: Run, error: BaseException) -> Optional[str]:
    """Return what to write instead; None where the innermost function has looked no name up in vain."""
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    registered = run.namespace["tables"]
    tables = {**vars(type(registered)), **vars(registered), **frame.f_globals, **frame.f_locals}
    asserted = isinstance(error, AssertionError)
    for part, table in _looked_up(frame, tables, asserted):
        unknown = {key: name for key, name in leaves(run.kwargs) if isinstance(name, str) and name not in table}
        exact = [key for key in unknown if key.rpartition(".")[2] == part]
        keys = exact if exact or asserted else [key for key in unknown if part in key.rpartition(".")[2]]
        if len(keys) == 1:
            name = unknown[keys[0]]
            why = _not_imported(name) or f"FunASR has no {part} of this name{near(name, table) or _all(table)}"
            return f"{keys[0]}={name}: {why}"
    return None


def _looked_up(frame: Any, tables: Dict[str, Any], asserted: bool) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """(part of the configuration, table) for each name that a function has looked up in vain."""
    used = [name for name in frame.f_code.co_names if name.endswith(_TABLE) and isinstance(tables.get(name), dict)]
    nones = [name[: -len(_CLASS)] for name, value in frame.f_locals.items() if name.endswith(_CLASS) and value is None]
    if asserted:
        # assert optim in optim_classes
        nones += [name[: -len(_TABLE)] for name in used]
    for part in nones:
        for name in used:
            if name[: -len(_TABLE)] in part or part.startswith(name[: -len(_TABLE)]):
                yield part, tables[name]


def _not_imported(name: str) -> str:
    """Return which module of FunASR registers a name, if it could not be imported: FunASR says nothing of it."""
    home = Path(str(sys.modules["funasr"].__file__)).parent
    registers = re.compile(rf"""tables\.register\(\s*["']\w+["'],\s*["']{re.escape(name)}["']""")
    for file in sorted(home.rglob("*.py")):
        module = ".".join(file.relative_to(home.parent).with_suffix("").parts)
        if module not in sys.modules and registers.search(file.read_text(encoding="utf-8", errors="ignore")):
            return f"FunASR could not import its module. Run python -c 'import {module}' to see why"
    return ""


def _all(table: Dict[str, Any]) -> str:
    names = ", ".join(sorted(table))
    return f"; it has {names if len(names) < _MOST else names[:_MOST].rpartition(',')[0] + ' ...'}" if names else ""
