"""Finds the comparisons that decide whether a layer runs, and proves from a function's syntax tree that they do.

Three things have to be certain: the one side is a number drawn uniformly between known bounds, the other one a rate
that nothing drawn and no data is part of, and its truth decides whether a module of a list of layers is called (or,
where a layer draws for itself, whether the layer does anything at all). Every other draw is the program's own.
"""

from __future__ import annotations

import ast
import functools
from types import FunctionType
from typing import Any, Callable, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddpfix.layerdrop import branches, source
from ddpfix.layerdrop.numbers import Number, Scope, index_of, may_draw, names_in, scope_of

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# Calls that are no use of a layer: they look at it.
_LOOKS = frozenset(
    (isinstance, issubclass, len, id, type, getattr, hasattr, print, repr, str, bool, int, float, zip, enumerate)
)
_ARITHMETIC = frozenset((len, min, max, float, int, abs, getattr))
_OTHER = (ast.operator, ast.unaryop, ast.expr_context)


class Decision(NamedTuple):
    """A comparison, or another condition, that decides whether a layer runs.

    Attributes:
        node: the comparison.
        skip: its truth with which the layer does not run.
        number: what was drawn; None where that is not certain.
        is_left: whether the number is on the left side.
        rate: the other side; None where it is no rate.
        layers: what the loop has for the layer; empty where the module draws for itself.
        holders: the attributes of the module that may hold these layers; empty for the module as a list.
        is_part: whether only a branch of a module that draws for itself is left out.
        is_only_run: whether the function runs its layers nowhere else.
        refusal: why ranks cannot share it; empty if they can.
    """

    node: ast.AST
    skip: bool
    number: Optional[Number]
    is_left: bool
    rate: Optional[ast.expr]
    layers: Tuple[ast.expr, ...]
    holders: FrozenSet[str]
    is_part: bool
    is_only_run: bool
    refusal: str


class Found(NamedTuple):
    """A function that draws for layers: its scope and all of its decisions."""

    scope: Scope
    decisions: Tuple[Decision, ...]

    def shared(self) -> Tuple[Decision, ...]:
        """Return the decisions that are proved."""
        return tuple(each for each in self.decisions if not each.refusal)


_NOTHING = Found(Scope(ast.parse("def _(): 0").body[0], {}), ())  # type: ignore[arg-type]


# By the function itself: each class is asked several times, and reading a source takes milliseconds.
@functools.lru_cache(maxsize=256)
def of(function: FunctionType) -> Found:
    """Return the decisions of a function; none where it draws nothing.

    Raises:
        PatchError: its source is unavailable, or is not what runs.
    """
    return in_scope(scope_of(function, source.tree_of(function))) if may_draw(function) else _NOTHING


def in_scope(scope: Scope) -> Found:
    """Return the decisions of a function whose scope is known."""
    found = [_decision(scope, node) for node in ast.walk(scope.tree) if isinstance(node, (ast.Compare, ast.Call))]
    return Found(scope, tuple(each for each in found if each is not None))


def _decision(scope: Scope, node: Any) -> Optional[Decision]:
    """Return the decision that a comparison with something drawn takes; None if it decides about no layer."""
    nested = any(isinstance(each, (ast.FunctionDef, ast.Lambda, ast.comprehension)) for each in scope.above(node))
    if nested or scope.draw_in(node) is None:
        return None
    if isinstance(node, ast.Call) and (_is_compared(scope, node) or scope.number(node) is not None):
        return None
    if isinstance(node, ast.Call) and any(isinstance(each, ast.Compare) for each in ast.walk(node)):
        return None
    loop = scope.loop(node)
    if isinstance(loop, ast.For):
        uses = _uses(scope, loop)
        outcomes = _outcomes(scope, loop.body, node, uses.__contains__)
        skip = branches.skipping_truth(outcomes, whole=True) if uses else None
        if skip is not None:
            layers = _layers(scope, loop, uses)
            return _checked(scope, node, skip, layers, _attributes(scope, [loop.iter, *layers]), False)
    calls = {each for each in ast.walk(scope.tree) if isinstance(each, ast.Call) and _calls_part(scope, each)}
    outcomes = _outcomes(scope, scope.tree.body, node, calls.__contains__)
    orders = isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS)
    skip = branches.skipping_truth(outcomes, whole=False) if orders and loop is None else None
    return None if skip is None else _checked(scope, node, skip, (), frozenset(), bool(outcomes(skip).reached))


def _outcomes(
    scope: Scope, body: Sequence[ast.stmt], node: ast.AST, runs: Callable[[ast.AST], bool]
) -> Callable[[bool], branches.Outcome]:
    return lambda truth: branches.Walk(node, truth, scope.holds, runs).outcome(body)


def _is_compared(scope: Scope, node: ast.Call) -> bool:
    """Return whether a call is a part of an expression that is examined as a whole."""
    above = next(scope.above(node), None)
    while isinstance(above, (ast.Attribute, ast.BinOp, ast.Subscript, ast.keyword, ast.Starred)):
        above = scope.parents[above]
    return isinstance(above, (ast.Compare, ast.Call))


def _uses(scope: Scope, loop: ast.For) -> Set[ast.AST]:
    """Return the calls in a loop that run the module of this turn: its name is called, or handed to what is called."""
    elements = _elements(scope, loop)
    for statement in ast.walk(loop):
        # A function that runs the layer stands for it (activation checkpointing).
        if isinstance(statement, ast.FunctionDef) and elements & names_in(statement):
            elements |= {statement.name}
        if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Name, ast.Attribute, ast.Subscript)):
            is_alias = elements & names_in(statement.value) or _indexed(scope, loop, statement.value)
            elements |= frozenset().union(*map(names_in, statement.targets)) if is_alias else frozenset()
    return {
        node
        for node in ast.walk(loop)
        if isinstance(node, (ast.Call, ast.Yield))
        and (elements & names_in(node) or (isinstance(node, ast.Call) and _indexed(scope, loop, node)))
        and not (isinstance(node, ast.Call) and _looks(scope, node))
    }


def _looks(scope: Scope, node: ast.Call) -> bool:
    function = scope.object(node.func)
    return any(function is each for each in _LOOKS)


def _elements(scope: Scope, loop: ast.For) -> FrozenSet[str]:
    """Return the names that a loop gives to what it iterates over; a count is none of them."""
    target, iterated = loop.target, loop.iter
    if not _of_module(scope, iterated):
        return frozenset()
    while isinstance(iterated, ast.Call) and scope.object(iterated.func) in (enumerate, range):
        if scope.object(iterated.func) is range or not isinstance(target, ast.Tuple):
            return frozenset()
        target, iterated = target.elts[-1], iterated.args[0]
    return names_in(target)


def _of_module(scope: Scope, node: ast.AST) -> bool:
    """Return whether an expression has something that the module holds, itself or by local names."""
    names = (each.id for each in scope.sources(node) if isinstance(each, ast.Name))
    return any(name in (scope.module, "super") for name in names)


def _indexed(scope: Scope, loop: ast.For, node: ast.AST) -> Optional[ast.Subscript]:
    """``self.layers[i]`` in a node, where ``i`` is what the loop counts."""
    counted = names_in(loop.target) - _elements(scope, loop)
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript) and scope.path(each.value) and isinstance(each.ctx, ast.Load):
            index = index_of(each)
            if isinstance(index, ast.Name) and index.id in counted:
                return each
    return None


def _layers(scope: Scope, loop: ast.For, uses: Set[ast.AST]) -> Tuple[ast.expr, ...]:
    """Expressions of which one is the layer of this turn."""
    # In their order: of several lists side by side, the first one is that of the layers.
    ordered = sorted((each for each in ast.walk(loop.target) if isinstance(each, ast.Name)), key=lambda e: e.col_offset)
    elements = _elements(scope, loop)
    names: List[ast.expr] = [ast.Name(id=each.id, ctx=ast.Load()) for each in ordered if each.id in elements]
    indexed = [each for each in (_indexed(scope, loop, use) for use in uses) if each is not None]
    # The first one in the code: several lists side by side have one entry a layer each.
    return (*names, *sorted(indexed, key=lambda each: (each.lineno, each.col_offset))[:1])


def _calls_part(scope: Scope, node: ast.Call) -> bool:
    """Return whether a call runs something that the module holds, or a module of a loop of its own."""
    if scope.path(node.func) or any(scope.path(argument) for argument in node.args):
        return not _looks(scope, node)
    return isinstance(node.func, ast.Name) and any(
        node.func.id in names_in(loop.target) for loop in ast.walk(scope.tree) if isinstance(loop, ast.For)
    )


def _attributes(scope: Scope, nodes: Sequence[ast.AST]) -> FrozenSet[str]:
    """Return the attributes of the module in expressions, and in what their local names are made of."""
    return frozenset(name for each in scope.sources(*nodes) for name in scope.path(each)[:1])


def _checked(
    scope: Scope,
    node: Any,
    skip: bool,
    layers: Tuple[ast.expr, ...],
    holders: FrozenSet[str],
    is_part: bool,
) -> Decision:
    """Return a decision, with the reason why it cannot be shared if there is one."""
    number, rate, is_left = None, None, True
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _ORDERS):
        sides = (node.left, node.comparators[0])
        is_left = scope.draw_in(sides[0]) is not None
        drawn, other = sides if is_left else sides[::-1]
        number = scope.number(drawn)
        rate = other if is_rate(scope, other) else None
    if number is not None and (number.is_vector or not _one_a_turn(scope, node, number)):
        number = None
    refusal = ""
    if number is None:
        refusal = "its number is not known to be uniform, and one for each layer"
    elif rate is None:
        refusal = "what it is compared with is no rate that the module holds"
    loops = [loop for loop in ast.walk(scope.tree) if isinstance(loop, ast.For) and _uses(scope, loop)]
    return Decision(node, skip, number, is_left, rate, layers, holders, is_part, len(loops) < 2, refusal)


def _one_a_turn(scope: Scope, node: ast.AST, number: Number) -> bool:
    """Return whether a number is drawn anew for each comparison; the entries of a vector were drawn before the loop."""
    around = {scope.tree, *scope.above(node)}
    for draw in () if number.is_entry else number.draws:
        statement = next(each for each in (draw, *scope.above(draw)) if isinstance(each, ast.stmt))
        if scope.loop(draw) is scope.loop(node) and scope.parents[statement] in around:
            return True
    return number.is_entry


def is_rate(scope: Scope, node: ast.AST, seen: FrozenSet[str] = frozenset()) -> bool:
    """Return whether an expression is made of constants, what the module holds, and what its loops count."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, str))
    if scope.path(node) or (isinstance(node, ast.Name) and node.id == scope.module):
        return True
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript)) or type(node).__name__ == "Index":
        return all(is_rate(scope, each, seen) for each in ast.iter_child_nodes(node) if not isinstance(each, _OTHER))
    if isinstance(node, ast.Call):
        known = any(scope.object(node.func) is each for each in _ARITHMETIC)
        from_config = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and scope.path(node.func.value)
        return bool(known or from_config) and all(is_rate(scope, each, seen) for each in node.args)
    return isinstance(node, ast.Name) and node.id not in seen and _is_rate_name(scope, node.id, seen)


def _is_rate_name(scope: Scope, name: str, seen: FrozenSet[str]) -> bool:
    if name not in scope.values:
        return isinstance(scope.object(ast.Name(id=name, ctx=ast.Load())), (int, float))
    loops = [loop for loop in ast.walk(scope.tree) if isinstance(loop, ast.For)]
    if any(name in names_in(loop.target) - _elements(scope, loop) for loop in loops):
        return len(scope.values[name]) == 1
    return all(value is not None and is_rate(scope, value, seen | {name}) for value in scope.values[name])
