"""Checks that patches change what the matrix says, and that undo gives back each object that was there before."""

from __future__ import annotations

import re
import sys
from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any, Dict, List, Tuple

import ddpfix
from ddpfix import engine
from ddpfix.matrix import detect, loader, resolve
from ddpfix.matrix.model import Patch, Row
from ddpfix.patching.site import Site
from ddpfix.settings import reading

Key = Tuple[str, ...]


def targets(toolkit: str) -> List[str]:
    """The modules that the patches of a toolkit wait for, with the installed releases, without patterns."""
    whole = loader.load()
    installed = detect.installed_versions(whole)
    decisions = resolve.resolve(whole, installed, reading.read({}, whole.patches, {}))
    found: Dict[str, None] = {}
    for decision in decisions:
        if decision.toolkit == toolkit and decision.row is not None:
            found.update(dict.fromkeys(target.module for target in decision.row.targets if "*" not in target.module))
    return list(found)


def imported(modules: List[str]) -> List[str]:
    """Import them; returns those that this environment cannot import."""
    missing = []
    for name in modules:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    return missing


def snapshot(*packages: str) -> Dict[Key, Any]:
    """Every global and every attribute of a class in the modules of some packages, as raw objects."""
    found: Dict[Key, Any] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] in packages:
            for name, value in list(vars(module).items()):
                found[module.__name__, name] = value
                if isinstance(value, type) and value.__module__ == module.__name__:
                    own = list(vars(value).items())
                    found.update(((module.__name__, name, inner), part) for inner, part in own)
    return found


def changed(before: Dict[Key, Any], after: Dict[Key, Any]) -> List[str]:
    """Dotted names of changed objects. Names that modules got since (lazy imports) do not count, ours do."""
    # A class that came with a module since does not count either.
    known = [key for key in after if key not in before and (len(key) < 3 or key[:2] in before)]
    new = [key for key in known if len(key) == 3 or key[-1].startswith("_ddpfix")]
    other = [key for key, value in before.items() if after.get(key) is not value and key[-1] not in _CHANGING]
    return [".".join(key) for key in (*new, *other)]


# What Python and torch themselves change in modules and classes.
_CHANGING = (
    "__abstractmethods__",
    "_abc_impl",
    "__annotations__",
    "__annotations_cache__",
    "__warningregistry__",
    "next_id",
)


def open_gate() -> None:
    """Put in place what waits for a process group."""
    current = engine.current()
    assert current is not None, "ddpfix is not active"
    current.gate.open()


def differences(toolkit: str) -> List[str]:
    """Places that patches of a toolkit changed and the matrix does not list, and the other way round.

    The modules that its patches wait for have been imported.
    """
    active = engine.current()
    assert active is not None, "ddpfix is not active"
    found: List[str] = []
    for decision in active.decisions:
        site = active.sites.get(decision.patch)
        if decision.toolkit == toolkit and decision.row is not None and site is not None:
            found += _of_patch(active.matrix.patches[decision.patch], decision.row, site)
    return found


def _of_patch(patch: Patch, row: Row, site: Site) -> List[str]:
    shared = [record.place for part in site.parts for record in part.in_force()]
    own = [record.place for record in site.records if not record.copy]
    listed = [str(target) for target in row.targets] + [place for place in (*patch.also, *row.also) if " " not in place]
    unlisted = [place for place in own if not any(_matches(place, known) for known in listed)]
    done = [*own, *shared, *site.registered]
    idle = [place for place in listed if _is_there(place) and not any(_matches(other, place) for other in done)]
    if any(" " in at for at in site.registered):
        # It acts at a place that is described in words, and its targets are where it registers.
        idle = []
    return [
        *(f"{patch.id} changes {place}, which the matrix does not list" for place in unlisted),
        *(f"{patch.id} does nothing at {place}, which the matrix lists" for place in idle),
    ]


def _matches(place: str, listed: str) -> bool:
    return re.match(re.escape(listed).replace(r"\*", ".*") + "$", place) is not None


def _is_there(place: str) -> bool:
    """Whether a place without ``*`` exists in this environment."""
    module, _, path = place.partition(":")
    if "*" in place or module not in sys.modules:
        return False
    try:
        reduce(getattr, path.split("."), sys.modules[module])
    except AttributeError:
        return False
    return True


def check(toolkit: str, least: int = 4) -> None:
    """Activate and deactivate: all of the toolkit's and torch's modules have the objects that they had before."""
    modules = targets(toolkit)
    missing = imported(modules)
    assert len(missing) < len(modules) / 4, missing
    packages = (toolkit, "torch")
    before = snapshot(*packages)
    ddpfix.activate(log="warning")
    try:
        open_gate()
        report = ddpfix.report()
        applied = [patch.id for patch in report.patches if patch.toolkit == toolkit and patch.state == "applied"]
        assert len(applied) >= least, report.json()
        assert changed(before, snapshot(*packages))
        assert differences(toolkit) == []
    finally:
        ddpfix.deactivate()
    assert changed(before, snapshot(*packages)) == []
