"""Whether the code that a fix relies on is what it was in a tested release.

A fix that wraps a function relies on its parameters alone, so what else the function does may change. Every other place
has to have code that a tested release has, by its hash: of a release that is newer than all of them the newest one's.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from functools import reduce
from types import CodeType, FunctionType, ModuleType
from typing import List, Mapping, NamedTuple, Optional, Sequence

from ddpfix.patching import source_hash

# In place of a hash, where a release does not have the place.
ABSENT = "absent"


class Known(NamedTuple):
    """The code of places in tested releases, the newest one's first, and the parameters of what fixes only wrap."""

    code: Mapping[str, Sequence[str]]
    parameters: Mapping[str, str]


def first_changed(
    known: Known, places: Sequence[str], rests_on: Sequence[str], toolkits: Mapping[str, bool]
) -> Optional[str]:
    """Return the first place of a fix that has changed; None where the fix holds.

    A family of modules is passed over, since its fix reads the source of each, and so is a module that has not been
    imported: its places are examined when it is.

    Args:
        places: its targets, and what it changes beside them; what is said in words is passed over.
        rests_on: places whose code counts in any case.
        toolkits: those that are examined, and whether each is newer than all releases that were tested.
    """
    for place in places:
        name, _, attribute = place.partition(":")
        module = sys.modules.get(name) if name.partition(".")[0] in toolkits else None
        if module is None:
            continue
        is_newer = toolkits[name.partition(".")[0]]
        if place not in known.parameters or place in rests_on:
            if not _is_known(source_hash.of_place(module, attribute), known.code.get(place, ()), is_newer):
                return place
        elif is_newer and not _takes(module, attribute, known.parameters[place]):
            return place
    for place in rests_on:
        top = place.partition(":")[0].partition(".")[0]
        if top in toolkits and not _is_known(_unimported(place), known.code.get(place, ()), toolkits[top]):
            return place
    return None


def _is_known(found: Optional[str], known: Sequence[str], is_newer: bool) -> bool:
    """Return whether a hash is one of those that are known, the newest release's first."""
    return (found or ABSENT) in (known[:1] if is_newer else known)


def _takes(module: ModuleType, attribute: str, known: str) -> bool:
    """Return whether a function takes the parameters that it took, and is defined where it was (see ``described``)."""
    with contextlib.suppress(AttributeError, ValueError):
        found = inspect.unwrap(reduce(getattr, attribute.split("."), module))  # type: ignore[arg-type]
        found = getattr(found, "__func__", found)
        if type(found) is FunctionType:
            home = f"{found.__module__}:{found.__qualname__}"
            return keeps(known, described(f"{module.__name__}:{attribute}", home, parameters(found.__code__)))
    return False


def described(place: str, home: str, names: Sequence[str]) -> str:
    """Return a function's parameters as text, behind the place where it is defined if that is another one."""
    return " ".join([*([] if place == home else [home]), *names])


def parameters(code: CodeType) -> List[str]:
    """Return the names of a function's parameters, those that have no position behind a bar."""
    names, count = code.co_varnames, code.co_argcount
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return [*names[:count], "|", *names[count : count + code.co_kwonlyargcount + stars]]


def keeps(known: str, found: str) -> bool:
    """Return whether parameters are still there, those with a position in their order (see :func:`parameters`)."""
    was, _, others = known.partition("|")
    now, _, all_others = found.partition("|")
    homes = [text.partition(" ")[0] for text in (known, found)]
    if homes[0] != homes[1] and ":" in "".join(homes):
        return False
    positions = iter(now.split())
    return all(name in positions for name in was.split()) and {*others.split()} <= {*now.split(), *all_others.split()}


def _unimported(place: str) -> Optional[str]:
    """Return the hash of a definition, by the file of its module: a module that nobody has imported stays so."""
    name, _, attribute = place.partition(":")
    package, *inside = name.split(".")
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        stem = os.path.join(folder, *inside)
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path):
                return source_hash.of_file(path, attribute)
    return None
