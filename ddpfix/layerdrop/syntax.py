"""What the syntax of a function tells by itself: names, what is assigned to them, constants, shapes."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Tuple


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the global names and attributes in a function's code, and in that of its comprehensions."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from names_of(value)


def names_in(target: ast.AST) -> FrozenSet[str]:
    """Return the names in a node."""
    return frozenset(node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def index_of(node: ast.Subscript) -> Any:
    """Return what a subscript is indexed by; Python 3.8 has a node around it."""
    index: Any = node.slice
    return index.value if type(index).__name__ == "Index" else index


def stored(node: Any, parents: Dict[ast.AST, ast.AST]) -> Iterator[Tuple[str, Optional[ast.expr]]]:
    """Yield the names that a node gives a value, and the expression whose value it is, if it is one."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, assigned(parents, node)
    elif isinstance(node, ast.arg):
        yield node.arg, None
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
        yield node.name, None
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield (alias.asname or alias.name).partition(".")[0], None


def assigned(parents: Dict[ast.AST, ast.AST], name: ast.Name) -> Optional[ast.expr]:
    """Return the expression whose value a name gets as a whole; that of ``a, b = 1, 2`` for ``b`` is ``2``."""
    parent = parents[name]
    if isinstance(parent, ast.Tuple):
        around = parents[parent]
        value = around.value if isinstance(around, ast.Assign) and parent in around.targets else None
        known = isinstance(value, ast.Tuple) and len(value.elts) == len(parent.elts)
        starred = known and any(isinstance(each, ast.Starred) for each in (*parent.elts, *value.elts))  # type: ignore
        return value.elts[parent.elts.index(name)] if known and not starred else None  # type: ignore[union-attr]
    if isinstance(parent, ast.Assign) and name in parent.targets:
        return parent.value
    if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
        return parent.value
    return None


def is_unit_interval(given: List[ast.expr], words: Any, low: str, high: str) -> bool:
    """Return whether the bounds of a draw are 0 and 1, given or by default."""
    found = [words.get(low), words.get(high)]
    found[: len(given)] = given
    return all(one is None or constant(one) == default for one, default in zip(found, (0.0, 1.0)))


def constant(node: ast.AST) -> Optional[float]:
    """Return the value of a numeric constant, with a sign or not."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_none(node: Optional[ast.AST]) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def shape_of(sizes: List[ast.expr]) -> Optional[str]:
    """Return the shape of a draw: a single number, a vector, or None for anything else (noise, a mask)."""
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = list(sizes[0].elts)
    if all(constant(size) == 1 or is_none(size) for size in sizes):
        return "number"
    return "vector" if len(sizes) == 1 else None
