"""Compares targets that are whole modules, in two releases of a package: each function of theirs."""

from __future__ import annotations

import ast
import contextlib
from typing import Any, Dict, Iterator, Optional

from ddpfix.matrix.model import Target
from ddpfix.waiting import pattern as name_pattern
from tests.releases.code import Code, Found
from tests.releases.compare import CHANGED, FINE, GONE, NEW, SAME, THERE, UNREADABLE, Place, compared, diff, whereabouts
from tests.releases.tree import Unreadable


def modules(old: Optional[Code], new: Code, wanted: Target, layers: bool) -> Iterator[Place]:
    """What was found about all functions of the modules that a target stands for.

    Args:
        old: the release on which the patch was tested; None where there is none.
        new: the release in question.
        wanted: the target.
        layers: whether only the functions that draw for layers count.
    """
    pattern = name_pattern(wanted.module)
    names = [name for code in (old, new) if code is not None for name in code.tree.paths if pattern.match(name)]
    if not any(name in new.tree.paths for name in names):
        yield Place(str(wanted), GONE, "no such module is there any more")
        return
    same = 0
    for name in dict.fromkeys(names):
        try:
            places = list(_of_module(old, new, name, layers))
        except Unreadable as error:
            yield Place(f"{name}:*", UNREADABLE, str(error))
            continue
        same += sum(place.state in FINE for place in places)
        yield from (place for place in places if place.state not in FINE)
    kind = "functions that draw for layers" if layers else "functions"
    yield Place(str(wanted), THERE if old is None else SAME, f"{same} {kind}")


def _of_module(old: Optional[Code], new: Code, module: str, layers: bool) -> Iterator[Place]:
    before = _chosen(old, module, layers) if old is not None else {}
    after = _chosen(new, module, layers)
    for name in dict.fromkeys((*before, *after)):
        was, now, at = before.get(name), after.get(name), f"{module}:{name}"
        if old is None:
            yield Place(at, THERE)
        elif was is None:
            yield Place(at, NEW, f"not in {old.tree.label}", diff(None, None, new, now))
        elif now is None:
            yield _lost(old, was, new, at)
        else:
            yield compared(old, was, new, now, at)


def _lost(old: Code, was: Found, new: Code, at: str) -> Place:
    """A function that is there no more, or that no longer draws."""
    now = new.find(at)
    if now is not None:
        return Place(at, CHANGED, "no longer draws for its layers", diff(old, was, new, now))
    return Place(at, GONE, whereabouts(new, at))


def _chosen(code: Code, module: str, layers: bool) -> Dict[str, Found]:
    if module not in code.tree.paths:
        return {}
    if layers and not _may_draw(code.tree.source(module)):
        return {}
    found = code.functions(module)
    return {name: each for name, each in found.items() if not layers or _draws(each)}


def _may_draw(source: str) -> bool:
    """Most modules of a large toolkit have no layer that is skipped, and need not be parsed."""
    from ddpfix.layerdrop.numbers import DRAWS

    return any(word in source for word in DRAWS)


def _draws(found: Found) -> bool:
    """Whether a function draws for layers, as the engine would decide from its source."""
    import random

    import torch

    from ddpfix.layerdrop import decisions
    from ddpfix.layerdrop.numbers import Scope

    names: Dict[str, Any] = {"torch": torch, "random": random}
    with contextlib.suppress(ImportError):
        import numpy

        names.update(np=numpy, numpy=numpy)
    node = found.nodes[-1]
    return isinstance(node, ast.FunctionDef) and bool(decisions.in_scope(Scope(node, names)).decisions)
