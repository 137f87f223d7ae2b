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
from typing import Any, Callable, Dict, FrozenSet, Iterator, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddpfix.layerdrop import call, decisions, rates, source
from ddpfix.layerdrop.loops import Decision
from ddpfix.layerdrop.numbers import Scope
from ddpfix.patching.site import PatchError


class Traits(NamedTuple):
    """What is particular to the code of one toolkit.

    Attributes:
        checks: functions that a forward calls to know whether all layers have to run, skipped ones included.
        skipped_output: the constant that stands for the outputs of a skipped layer where it has fewer of them than a
            layer that ran; it is made as long as theirs.
    """

    checks: Tuple[str, ...] = ()
    skipped_output: Tuple[None, ...] = ()


def innermost(function: Any) -> Any:
    """Return the function below all decorators that set ``__wrapped__``."""
    return inspect.unwrap(function)


def chosen(found: decisions.Found, examined: bool) -> Tuple[Decision, ...]:
    """Return the decisions that ranks can share; a branch of a layer is one only where the code was examined."""
    return tuple(each for each in found.decisions if not each.refusal and (examined or not each.is_part))


def scheduled(function: FunctionType, traits: Traits, examined: bool, owner: Optional[type] = None) -> FunctionType:
    """Return a copy whose comparisons ask the current call; PatchError where its source is not what runs."""
    found = decisions.of(function, owner)
    named = {f"_comparison_{site}": each for site, each in enumerate(chosen(found, examined))}
    values: Dict[str, Any] = {
        name: call.Comparison(each, site, rates.name_of(found.scope, each), examined)
        for site, (name, each) in enumerate(named.items())
    }
    for name in traits.checks:
        check = found.scope.object(ast.Name(id=name, ctx=ast.Load()))
        if callable(check):
            values[_CHECK + name] = _unless_shared(name, check)
    return _changed(function, found, named, values, traits)


def without_skips(function: FunctionType, zero: Tuple[str, ...] = (), owner: Optional[type] = None) -> FunctionType:
    """Return a copy that never skips, and reads 0 for every rate that it takes from ``self``.

    Args:
        zero: names of rates beside those that its draws are compared with.

    Raises:
        PatchError: its source is not what runs.
    """
    found = decisions.read(function, owner)
    named = {f"_comparison_{site}": each for site, each in enumerate(chosen(found, True))}
    rated = frozenset((*zero, *(path[0] for path in rates.paths(found) if len(path) == 1)))
    return _changed(function, found, named, {}, Traits(), rated)


_CHECK = "_check_"


def _changed(
    function: FunctionType,
    found: decisions.Found,
    named: Mapping[str, Decision],
    values: Mapping[str, Any],
    traits: Traits,
    zero: FrozenSet[str] = frozenset(),
) -> FunctionType:
    memo: Dict[int, Any] = {}
    tree = copy.deepcopy(found.scope.tree, memo)
    comparisons = {memo[id(each.node)]: (name, each) for name, each in named.items()}
    shares = bool(values)
    checks = [name[len(_CHECK) :] for name in values if name.startswith(_CHECK)]
    zeros = {memo[id(node)] for node in _rates(found.scope, zero)}
    change = _Change(found.scope, comparisons, shares, checks, traits.skipped_output, zeros)
    return source.changed(function, ast.fix_missing_locations(change.visit(tree)), values)


def _rates(scope: Scope, names: FrozenSet[str]) -> Iterator[ast.AST]:
    """Yield the expressions that read such a rate: ``self.rate``, ``self.rates[i]``, ``rate`` of a loop over them."""
    for node in ast.walk(scope.tree) if names else ():
        read: Optional[ast.AST] = node
        if isinstance(node, ast.Name) and node.id != scope.module:
            read = scope.iterated(node.id)
        elif isinstance(node, ast.Subscript):
            read = node.value
        elif isinstance(node, ast.Attribute) and isinstance(scope.parents[node], (ast.Subscript, ast.Call, ast.For)):
            # The list itself is kept; a number may be handed to a function.
            above = scope.parents[node]
            is_number = isinstance(above, ast.Call) and scope.object(above.func) not in (zip, enumerate, len, reversed)
            read = node if is_number else None
        path = () if read is None else scope.path(read)
        if len(path) == 1 and path[0] in names and isinstance(getattr(node, "ctx", None), ast.Load):
            yield node


class _Change(ast.NodeTransformer):
    """Replaces comparisons, checks, outputs of skipped layers that are too short, and rates that are to be 0."""

    def __init__(
        self,
        scope: Scope,
        comparisons: Mapping[ast.AST, Tuple[str, Decision]],
        shares: bool,
        checks: Sequence[str],
        skipped_output: Tuple[None, ...],
        zero: Set[ast.AST],
    ) -> None:
        self._scope, self._comparisons, self._shares, self._checks = scope, comparisons, shares, checks
        self._short, self._zero = skipped_output, zero

    def visit(self, node: ast.AST) -> Any:
        if node in self._zero:
            return _placed(ast.Constant(value=0.0), node)
        if node in self._comparisons:
            return self._decided(node)
        return super().visit(node)

    def _decided(self, node: Any) -> ast.AST:
        name, decision = self._comparisons[node]
        if not self._shares:
            # The draw is made, and its layer kept.
            pair = ast.Tuple(elts=[node, ast.Constant(value=not decision.skip)], ctx=ast.Load())
            return _placed(ast.Subscript(value=pair, slice=source.index_from("1"), ctx=ast.Load()), node)
        generator = decision.number.generator if decision.number is not None else ""
        # Evaluated in the order of the comparison, and only what has no effect is read once more.
        drawn = _read(f"{self._scope.module}.{generator}" if generator else "None")
        given = copy.deepcopy([node.left, node.comparators[0], drawn, *decision.layers])
        return _placed(ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=given, keywords=[]), node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_check = node.id in self._checks and isinstance(node.ctx, ast.Load)
        return _placed(ast.Name(id=_CHECK + node.id, ctx=ast.Load()), node) if is_check else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        value, size = node.value, len(self._short)
        # Where it is unpacked, its length is right.
        found = value.elts if isinstance(value, ast.Tuple) and isinstance(node.targets[0], ast.Name) else []
        if size and [getattr(each, "value", value) for each in found] == [None] * size:
            found.extend(copy.deepcopy(found[0]) for _ in range(5 - size))
        return self.generic_visit(node)


def _read(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _placed(node: Any, at: ast.AST) -> ast.AST:
    """Return a node that stands, with all that is new below it, at the place of another one."""
    for each in ast.walk(node):
        if isinstance(each, (ast.expr, ast.keyword)) and not hasattr(each, "lineno"):
            ast.copy_location(each, at)
    return node  # type: ignore[no-any-return]


def _unless_shared(name: str, check: Callable[..., bool]) -> Callable[..., bool]:
    """Skip a toolkit's check that runs every layer of a sharded model because ranks might disagree: here they agree.

    A recomputation in backward repeats the decisions of a step, and must run what the forward ran.
    """

    @functools.wraps(check)
    def must_run_all(*args: Any, **kwargs: Any) -> bool:
        current = call.CURRENT.get()
        agrees = current is not None and current.base is not None
        if agrees and any(each.answers(name) for each in call.EXTENSIONS):
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
