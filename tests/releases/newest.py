"""Shows which fixes rely on code that a release has changed since the newest tested one."""

from __future__ import annotations

import difflib
from typing import Callable, Dict, List, Tuple

from packaging.version import Version

from ddpfix.cli import plan
from ddpfix.matrix.model import Matrix
from tests.releases import backtest
from tests.releases.code import Code, Tree, Unreadable

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(matrix: Matrix, package: str, releases: Tuple[Version, Version], read: Callable[[Version], Tree]) -> int:
    """Print each changed place with its fixes and a diff; returns how many there are.

    Args:
        matrix: the matrix.
        package: a toolkit of it.
        releases: the newest tested one, and the one in question.
        read: the files of a release.
    """
    old, new = Code(read(releases[0])), Code(read(releases[1]))
    fixes: Dict[str, List[str]] = {}
    kept = 0
    for patch, row, places in backtest.relying(matrix, package, releases[0]):
        changed = backtest.changed(row, places, old, new)
        fixes.setdefault(changed, []).append(patch.id)
        kept += not changed
    fixes.pop("", None)
    lines = [f"{package} {releases[1]}, compared with {releases[0]}: {kept} fixes rely on code that is the same"]
    for place, names in fixes.items():
        lines += [f"{place} has changed: {', '.join(names)}", *_diff(_text(old, place), _text(new, place), releases)]
    console = plan.new_console()
    for line in lines:
        console.print(plan.plain(line.expandtabs(4), _STYLES.get(line[:1], "")), soft_wrap=True)
    return len(fixes)


def _diff(old: str, new: str, releases: Tuple[Version, Version]) -> List[str]:
    return list(difflib.unified_diff(old.split("\n"), new.split("\n"), str(releases[0]), str(releases[1]), lineterm=""))


def _text(code: Code, place: str) -> str:
    """The source of a place; empty where it is not, or cannot be read."""
    module, _, attribute = place.partition(":")
    try:
        if attribute == "*":
            return code.tree.source(module) if module in code.tree.paths else ""
        found = code.find(place)
        return code.text(found) if found is not None else ""
    except Unreadable as error:
        return str(error)
