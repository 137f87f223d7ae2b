"""Compares the forwards that were examined line by line: the matrix has hashes of them, and no names of classes.

The classes are found in the tested release, as those with one of these hashes.
"""

from __future__ import annotations

import ast
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ddpfix.patching import source_hash
from tests.releases import compare
from tests.releases.code import Code, Found
from tests.releases.compare import Place
from tests.releases.tree import Unreadable

_FORWARD = "forward"
# What a method of a class may have in front of it, and still be the function that a hash is made of.
_PLAIN = ("staticmethod", "classmethod")


def sources(old: Optional[Code], new: Code, hashes: Mapping[str, Sequence[str]]) -> List[Place]:
    """What was found about the examined forwards.

    Args:
        old: the tested release; without one nothing is known.
        new: the release in question.
        hashes: those that the matrix has, by the patch's own names for what was examined.
    """
    places: List[Place] = []
    if old is None:
        return places
    for name, owner in _examined(old, hashes):
        at = f"{owner.module}:{owner.name}.{_FORWARD}"
        try:
            places.append(_place(old, new, owner, at, name, hashes[name]))
        except Unreadable as error:
            places.append(Place(at, compare.UNREADABLE, str(error)))
    return places


def digest(code: Code, owner: Found) -> str:
    """The hash of a class's forward, as the engine makes it of the class itself."""
    return source_hash.digest(_FORWARD, lambda name: _plain(code.method(owner, name)))


def _plain(method: Optional[Found]) -> Optional[ast.AST]:
    """The statement of a method that is a plain function; a property, for one, does not count."""
    node = method.nodes[-1] if method is not None else None
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    decorators = [each.id if isinstance(each, ast.Name) else "" for each in node.decorator_list]
    return node if all(name in _PLAIN for name in decorators) else None


def _examined(old: Code, hashes: Mapping[str, Sequence[str]]) -> Iterator[Tuple[str, Found]]:
    known = {each: name for name, several in hashes.items() for each in several}
    for module in sorted(old.tree.paths):
        try:
            owners = [each for each in old.classes(module) if old.method(each, _FORWARD) is not None]
            found = [(known.get(digest(old, owner)), owner) for owner in owners]
        except Unreadable:
            # A module that cannot be read has no class that was examined.
            continue
        yield from ((name, owner) for name, owner in found if name is not None)


def _place(old: Code, new: Code, owner: Found, at: str, name: str, hashes: Sequence[str]) -> Place:
    now = new.find(f"{owner.module}:{owner.name}")
    if now is None or new.method(now, _FORWARD) is None:
        return Place(at, compare.GONE, compare.whereabouts(new, at))
    if digest(new, now) in hashes:
        return Place(at, compare.SAME, f"examined as {name}")
    before, after = _methods(old, owner), _methods(new, now)
    changed = [each for each in dict.fromkeys((*before, *after)) if _text(before, each) != _text(after, each)]
    diffs = [compare.diff(old, before.get(each), new, after.get(each)) for each in changed]
    message = f"examined as {name}, and has changed in {', '.join(changed)}: the patch takes it for unexamined"
    return Place(at, compare.CHANGED, message, "".join(diffs))


def _text(methods: Mapping[str, Found], name: str) -> str:
    return methods[name].canonical() if name in methods else ""


def _methods(code: Code, owner: Found) -> Dict[str, Found]:
    """The methods that a hash is made of."""
    found: Dict[str, Found] = {}

    def find(name: str) -> Optional[ast.AST]:
        method = code.method(owner, name)
        node = _plain(method)
        if method is not None and node is not None:
            found[name] = method
        return node

    source_hash.digest(_FORWARD, find)
    return found
