"""Copies a function, with other comparisons in the places of those that decide about layers.

The function itself is never changed. The copy has its file and line numbers, and what it needs of ddpfix as free
variables: nothing is put into the namespace of its module.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from types import CellType, FunctionType
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from ddpfix.layerdrop import comparisons, shared_skips, source
from ddpfix.layerdrop.comparisons import Decision
from ddpfix.patching.site import PatchError


def innermost(function: Any) -> Any:
    """Return the function below all decorators that set ``__wrapped__``."""
    return inspect.unwrap(function)


def chosen(found: Sequence[Decision], examined: bool) -> Tuple[Decision, ...]:
    """Return the decisions that ranks can share; a branch of a layer is one only where the code was examined."""
    return tuple(each for each in found if not each.refusal and (examined or not each.is_part))


def scheduled(function: FunctionType, checks: Tuple[str, ...], examined: bool) -> FunctionType:
    """Return a copy whose comparisons ask the current call.

    Args:
        checks: functions that a forward calls to know whether all layers have to run, skipped ones included. Where it
            may have them, ``(None, None)`` for the outputs of a skipped layer is made as long as those of a layer.

    Raises:
        PatchError: its source is not what runs.
    """
    found = comparisons.of(function)
    values: Dict[str, Any] = {}
    new: Dict[ast.AST, ast.expr] = {}
    for site, each in enumerate(chosen(found.decisions, examined)):
        name = f"_comparison_{site}"
        values[name] = shared_skips.Comparison(each, site, examined)
        generator = each.number.generator if each.number is not None else ""
        # Evaluated in the order of the comparison, and only what has no effect is read once more.
        drawn = _read(f"{found.scope.module}.{generator}" if generator else "None")
        given = copy.deepcopy([each.node.left, each.node.comparators[0], drawn, *each.layers])
        new[each.node] = ast.Call(func=_read(name), args=given, keywords=[])
    for node in ast.walk(found.scope.tree):
        if isinstance(node, ast.Name) and node.id in checks and callable(found.scope.object(node)):
            name = f"_check_{node.id}"
            values[name] = _unless_shared(node.id, found.scope.object(node))
            new[node] = _read(name)
        # Where it is unpacked, its length is right.
        is_named = checks and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if is_named and ast.dump(node.value) == _SHORT:  # type: ignore[attr-defined]
            new[node.value] = _read("(None, None, None, None, None)")  # type: ignore[attr-defined]
    return _changed(function, found, new, values)


def without_skips(function: FunctionType, zero: Tuple[str, ...] = ()) -> FunctionType:
    """Return a copy that never skips, and reads 0 for every rate that it takes from ``self``.

    Args:
        zero: names of rates beside those that its draws are compared with.

    Raises:
        PatchError: its source is not what runs.
    """
    found = comparisons.read(function)
    scope, new = found.scope, {}
    rated = {*zero, *(path[0] for path in comparisons.paths(found.decisions) if len(path) == 1)}
    for node in ast.walk(scope.tree):
        is_read = isinstance(getattr(node, "ctx", None), ast.Load) and len(scope.path(node)) == 1
        # A list of rates is kept.
        if is_read and rated.issuperset(scope.path(node)) and not isinstance(scope.parents[node], ast.Subscript):
            new[node] = _read("0.0")
    for each in chosen(found.decisions, True):
        # The draw is made, and its layer kept.
        kept: Any = _read(f"(None, {not each.skip})[1]")
        kept.value.elts[0] = copy.deepcopy(each.node)
        new[each.node] = kept
    return _changed(function, found, new, {})


def _changed(
    function: FunctionType, found: comparisons.Found, new: Mapping[ast.AST, ast.expr], values: Mapping[str, Any]
) -> FunctionType:
    """Return a copy of a function with new expressions in the places of some."""
    memo: Dict[int, Any] = {}
    tree = copy.deepcopy(found.scope.tree, memo)
    change = _Change({memo[id(node)]: made for node, made in new.items()})
    return source.changed(function, ast.fix_missing_locations(change.visit(tree)), values)


# WavLM in transformers up to 4.36 asks for a third output of a skipped layer (``output_attentions``).
_SHORT = ast.dump(ast.parse("(None, None)", mode="eval").body)


class _Change(ast.NodeTransformer):
    def __init__(self, new: Mapping[ast.AST, ast.expr]) -> None:
        self._new = new

    def visit(self, node: ast.AST) -> Any:
        return _placed(self._new[node], node) if node in self._new else super().visit(node)


def _read(text: str) -> ast.expr:
    """Return an expression from its text, without a place of its own."""
    made = ast.parse(text, mode="eval").body
    for node in ast.walk(made):
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            node.__dict__.pop(name, None)
    return made


def _placed(made: ast.AST, at: ast.AST) -> ast.AST:
    """Return a node that stands, with all that is new below it, at the place of another one."""
    for each in ast.walk(made):
        if isinstance(each, (ast.expr, ast.keyword)) and not hasattr(each, "lineno"):
            ast.copy_location(each, at)
    return made


def _unless_shared(name: str, check: Callable[..., bool]) -> Callable[..., bool]:
    """Skip a toolkit's check that runs every layer of a sharded model because ranks might disagree: here they agree.

    A recomputation in backward repeats the decisions of a step, and must run what the forward ran.
    """

    @functools.wraps(check)
    def must_run_all(*args: Any, **kwargs: Any) -> bool:
        current = shared_skips.CURRENT.get()
        agrees = current is not None and current.base is not None
        if agrees and any(each.answers(name) for each in shared_skips.EXTENSIONS):
            return False
        all_run = check(*args, **kwargs)
        if all_run and current is not None:
            current.whole = True
        return all_run

    return must_run_all


def rebuild(function: Any, inner: Any, replacement: Any) -> Any:
    """Copy a chain of decorators around ``inner`` onto ``replacement``; PatchError where one holds it in no closure."""
    if function is inner:
        return replacement
    below = function.__wrapped__
    cells = getattr(function, "__closure__", None) or ()
    if not isinstance(function, FunctionType) or not any(cell.cell_contents is below for cell in cells):
        raise PatchError(f"the decorator around {inner.__qualname__} does not hold it in a closure")
    rebuilt = rebuild(below, inner, replacement)
    closure = tuple(CellType(rebuilt) if cell.cell_contents is below else cell for cell in cells)
    copied = source.copy_with(function, function.__code__, closure)
    copied.__dict__.update(function.__dict__)
    copied.__dict__["__wrapped__"] = rebuilt
    return copied
