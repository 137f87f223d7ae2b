"""Compares targets that are whole modules, in two releases of a package: each function of theirs."""

from __future__ import annotations

import ast
import copy
from types import CodeType, FunctionType
from typing import Dict, Iterator, Optional

from ddpfix.cli.drift.code import Code, Found
from ddpfix.cli.drift.compare import (
    CHANGED,
    FINE,
    GONE,
    NEW,
    SAME,
    THERE,
    UNREADABLE,
    Place,
    compared,
    diff,
    whereabouts,
)
from ddpfix.cli.drift.tree import Unreadable
from ddpfix.matrix.model import Target
from ddpfix.waiting import pattern as name_pattern


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
    from ddpfix.layerdrop import code_copy

    return any(word in source for word in (*code_copy.RATES, "def __iter__"))


def _draws(found: Found) -> bool:
    """Whether a function draws for layers, as the engine would decide; it is compiled for that, and never called."""
    from ddpfix.layerdrop import code_copy

    try:
        module = compile(_alone(found.nodes[-1]), "<release>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    code = next((each for each in module.co_consts if isinstance(each, CodeType)), None)
    return code is not None and not code.co_freevars and code_copy.draws_layers(FunctionType(code, {}))


def _alone(node: ast.AST) -> ast.Module:
    """A module with this function alone; a decorator is nothing that draws."""
    plain = copy.copy(node)
    plain.decorator_list = []  # type: ignore[attr-defined]
    return ast.Module(body=[plain], type_ignores=[])  # type: ignore[list-item]
