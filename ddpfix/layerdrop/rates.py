"""Reads the rate at which a module skips layers, from what its comparisons compare with."""

from __future__ import annotations

import ast
import copy
from types import FunctionType
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ddpfix.layerdrop.decisions import Found
from ddpfix.layerdrop.loops import Decision
from ddpfix.layerdrop.numbers import Scope
from ddpfix.layerdrop.source import index_from

Reader = Callable[[Any], float]


def paths(found: Found) -> Tuple[Tuple[str, ...], ...]:
    """Return where a function reads its rates, in order: each as ``("layerdrop",)`` or ``("config", "layerdrop")``."""
    return tuple(dict.fromkeys(path for each in found.decisions for path in paths_of(found.scope, each)))


def name_of(scope: Scope, decision: Decision) -> str:
    """Return the name of the rate of a decision; empty where it has none."""
    read = paths_of(scope, decision)
    return read[0][-1] if read else ""


def reader(found: Found, decisions: Sequence[Decision], function: FunctionType) -> Reader:
    """Return a function that gives the rate of a module, the largest if there are several."""
    readers = [_reader(found.scope, each, function) for each in decisions if each.rate is not None]
    if len(readers) == 1:
        return readers[0]
    return lambda module: max((read(module) for read in readers), default=0.0)


def _reader(scope: Scope, decision: Decision, function: FunctionType) -> Reader:
    assert decision.rate is not None
    path = scope.path(decision.rate)
    compare: Any = decision.node
    is_below = isinstance(compare.ops[0], (ast.Lt, ast.LtE)) == decision.is_left
    skips_below = is_below == decision.skip
    if path and skips_below:
        # This runs in every forward.
        return _plain(path)
    compared = _compiled(scope, decision.rate, function)

    def rate(module: Any) -> float:
        shares = (value if skips_below else 1 - value for value in compared(module))
        return max((min(max(share, 0.0), 1.0) for share in shares), default=0.0)

    return rate


def _plain(path: Tuple[str, ...]) -> Reader:
    def read(module: Any) -> float:
        # An instance may lack the attributes of some branches of its forward.
        for name in path:
            module = getattr(module, name, 0.0)
        return module if isinstance(module, float) else _number(module)

    return read


def _number(value: Any) -> float:
    if isinstance(value, (list, tuple)):
        return max(map(_number, value), default=0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _compiled(scope: Scope, rate: ast.expr, function: FunctionType) -> Callable[[Any], List[float]]:
    """Return a function that gives what a number is compared with, for each turn of a loop where it depends on that."""
    counted: Dict[str, None] = {}
    body = _Inlined(scope, counted).visit(copy.deepcopy(rate))
    text = f"lambda {', '.join((scope.module or '_', *counted))}: 0"
    parsed: Any = ast.parse(text, mode="eval")
    parsed.body.body = body
    evaluated = eval(compile(ast.fix_missing_locations(parsed), "<rate>", "eval"), function.__globals__)

    def values(module: Any) -> List[float]:
        found = []
        for turn in range(_turns(module) if counted else 1):
            try:
                found.append(float(evaluated(module, *(turn for _ in counted))))
            except Exception:
                # An instance may lack it, or have fewer; what the program's own attributes raise ends nothing here.
                continue
        return found

    return values


def _turns(module: Any) -> int:
    lists = [len(child) for child in (module, *module.children()) if hasattr(child, "__len__")]
    return max(lists, default=1)


# The name of a loop's turn, by which a list of rates is indexed.
_TURN = "_turn"


class _Inlined(ast.NodeTransformer):
    """Puts what is assigned to local names in their places, and notes the names that a loop counts."""

    def __init__(self, scope: Scope, counted: Dict[str, None], seen: FrozenSet[str] = frozenset()) -> None:
        self._scope, self._counted, self._seen = scope, counted, seen

    def visit_Name(self, node: ast.Name) -> ast.AST:
        values: List[Optional[ast.expr]] = self._scope.values.get(node.id, [])
        if node.id == self._scope.module or not values or node.id in self._seen:
            return node
        source = self._scope.iterated(node.id)
        if source is not None and self._scope.path(source):
            self._counted[_TURN] = None
            entry = ast.Subscript(value=copy.deepcopy(source), slice=index_from(_TURN), ctx=ast.Load())
            return ast.copy_location(entry, node)
        if values[0] is None:
            self._counted[node.id] = None
            return node
        inner = _Inlined(self._scope, self._counted, self._seen | {node.id})
        inlined: ast.AST = inner.visit(copy.deepcopy(values[0]))
        return inlined


def paths_of(scope: Scope, decision: Decision) -> List[Tuple[str, ...]]:
    """Return the attributes that a decision reads from the module, with those that its rate is computed from."""
    if decision.rate is None:
        return []
    rate = _Inlined(scope, {}).visit(copy.deepcopy(decision.rate))
    # How many layers there are is no rate.
    counts = [each for each in ast.walk(rate) if isinstance(each, ast.Call) and scope.object(each.func) is len]
    counted = {id(node) for each in counts for node in ast.walk(each)}
    read = [scope.path(node) for node in ast.walk(rate) if id(node) not in counted]
    whole = [path for path in read if path and not any(path == other[: len(path)] for other in read if other != path)]
    return [path for path in whole if len(path) == 1 or (len(path) == 2 and path[0] == "config")]
