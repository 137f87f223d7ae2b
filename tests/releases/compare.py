"""Compares what patches are put on, and the sources that were examined, in two releases of a package."""

from __future__ import annotations

import difflib
from typing import NamedTuple, Optional, Sequence

from ddpfix.matrix.model import Target
from tests.releases.code import Code, Found
from tests.releases.tree import Unreadable

SAME, CHANGED, GONE, MOVED, NEW, REFUSED, UNREADABLE, THERE = (
    "same",
    "changed",
    "gone",
    "moved",
    "new",
    "refused",
    "unreadable",
    "there",
)
# What there is no need to look at.
FINE = (SAME, THERE)


class Place(NamedTuple):
    """What was found about one place.

    Attributes:
        at: written like a target of the matrix.
        state: one of the words above; ``refused``: the patch would not be put in place; ``there``: it is there, and
            nothing is known to compare it with.
        message: what has changed, in words.
        diff: of the function, where it has changed.
    """

    at: str
    state: str
    message: str = ""
    diff: str = ""


def function(old: Optional[Code], new: Code, wanted: Target) -> Place:
    """What was found about a target that is one function.

    Args:
        old: the release on which the patch was tested; None where there is none.
        new: the release in question.
        wanted: the target.
    """
    try:
        return _function(old, new, str(wanted), wanted.expects)
    except Unreadable as error:
        return Place(str(wanted), UNREADABLE, str(error))


def _function(old: Optional[Code], new: Code, at: str, expects: Sequence[str]) -> Place:
    was = old.find(at) if old is not None else None
    now = new.find(at)
    if now is None:
        return Place(at, GONE, whereabouts(new, at))
    named = now.parameters()
    missing = [name for name in expects if named is not None and name not in named]
    if missing:
        message = f"no longer takes {', '.join(missing)}: the patch would not be put in place"
        return Place(at, REFUSED, message, diff(old, was, new, now))
    if old is None:
        return Place(at, THERE)
    if was is None:
        return Place(at, NEW, f"not found in {old.tree.label}")
    return compared(old, was, new, now, at)


def compared(old: Code, was: Found, new: Code, now: Found, at: str) -> Place:
    """What was found about a definition that both releases have; ``at`` is where it is looked for."""
    if str(was) != str(now):
        changed = "" if was.canonical() == now.canonical() else ", and has changed"
        return Place(at, MOVED, f"was {was}, is {now} now{changed}", diff(old, was, new, now))
    if was.canonical() == now.canonical():
        return Place(at, SAME)
    return Place(at, CHANGED, _signature(was, now), diff(old, was, new, now))


def _signature(was: Found, now: Found) -> str:
    before, after = was.parameters(), now.parameters()
    if before == after or before is None or after is None:
        return "its body has changed"
    parts = [f"no longer takes {name}" for name in before if name not in after]
    parts += [f"takes {name}" for name in after if name not in before]
    return "its signature has changed: " + (", ".join(parts) or "the order of its parameters")


def whereabouts(code: Code, at: str) -> str:
    """Where something is now that is not where it was, in words."""
    found, searched = code.elsewhere(at)
    if found:
        return f"is not there any more; that name is now at {', '.join(found[:5])}"
    whole = "" if code.tree.near else f" in the {searched} nearest modules"
    return f"is not there any more, nor anything of that name{whole}"


def diff(old: Optional[Code], was: Optional[Found], new: Code, now: Optional[Found]) -> str:
    """A unified diff of two definitions; one that is missing counts as empty."""
    before = old.text(was).split("\n") if old is not None and was is not None else []
    after = new.text(now).split("\n") if now is not None else []
    names = [
        f"{code.tree.label} {one} line {one.line}" if code is not None and one is not None else "nothing"
        for code, one in ((old, was), (new, now))
    ]
    lines = difflib.unified_diff(before, after, names[0], names[1], lineterm="")
    return "".join(f"{line}\n" for line in lines)
