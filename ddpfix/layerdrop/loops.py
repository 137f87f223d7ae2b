"""The loops of a function over modules: which calls run the module of a turn, and what a condition decides of them."""

from __future__ import annotations

import ast
from typing import Callable, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddpfix.layerdrop import branches
from ddpfix.layerdrop.numbers import Number, Scope
from ddpfix.layerdrop.syntax import index_of, names_in

# Calls that are no use of a layer: they look at it.
_LOOKS = frozenset(
    (isinstance, issubclass, len, id, type, getattr, hasattr, print, repr, str, bool, int, float, zip, enumerate)
)


class Decision(NamedTuple):
    """A comparison, or another condition, that decides whether a layer runs.

    Attributes:
        node: the comparison, or another condition that cannot be shared.
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


def outcomes_of(
    scope: Scope, body: Sequence[ast.stmt], node: ast.AST, runs: Callable[[ast.AST], bool]
) -> Callable[[bool], branches.Outcome]:
    return lambda truth: branches.Walk(node, truth, scope.holds, runs).outcome(body)


def uses(scope: Scope, loop: ast.For) -> Set[ast.AST]:
    """Return the calls in a loop that run the module of this turn: its name is called, or handed to what is called."""
    names = elements(scope, loop)
    for statement in ast.walk(loop):
        # A function that runs the layer stands for it (activation checkpointing).
        if isinstance(statement, ast.FunctionDef) and names & names_in(statement):
            names |= {statement.name}
        if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Name, ast.Attribute, ast.Subscript)):
            is_alias = names & names_in(statement.value) or _indexed(scope, loop, statement.value)
            names |= frozenset().union(*map(names_in, statement.targets)) if is_alias else frozenset()
    return {
        node
        for node in ast.walk(loop)
        if isinstance(node, (ast.Call, ast.Yield))
        and (names & names_in(node) or (isinstance(node, ast.Call) and _indexed(scope, loop, node)))
        and not (isinstance(node, ast.Call) and looks(scope, node))
    }


def looks(scope: Scope, node: ast.Call) -> bool:
    function = scope.object(node.func)
    return any(function is each for each in _LOOKS)


def elements(scope: Scope, loop: ast.For) -> FrozenSet[str]:
    """Return the names that a loop gives to what it iterates over; a count is none of them."""
    target, iterated = loop.target, loop.iter
    if not of_module(scope, iterated):
        return frozenset()
    while isinstance(iterated, ast.Call) and scope.object(iterated.func) in (enumerate, range):
        if scope.object(iterated.func) is range or not isinstance(target, ast.Tuple):
            return frozenset()
        target, iterated = target.elts[-1], iterated.args[0]
    return names_in(target)


def of_module(scope: Scope, node: ast.AST) -> bool:
    """Return whether an expression has something that the module holds, itself or by local names."""
    names = (each.id for each in scope.sources(node) if isinstance(each, ast.Name))
    return any(name in (scope.module, "super") for name in names)


def _indexed(scope: Scope, loop: ast.For, node: ast.AST) -> Optional[ast.Subscript]:
    """``self.layers[i]`` in a node, where ``i`` is what the loop counts."""
    counted = names_in(loop.target) - elements(scope, loop)
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript) and scope.path(each.value) and isinstance(each.ctx, ast.Load):
            index = index_of(each)
            if isinstance(index, ast.Name) and index.id in counted:
                return each
    return None


def layers_of_turn(scope: Scope, loop: ast.For, uses: Set[ast.AST]) -> Tuple[ast.expr, ...]:
    """Expressions of which one is the layer of this turn."""
    # In their order: of several lists side by side, the first one is that of the layers.
    ordered = sorted((each for each in ast.walk(loop.target) if isinstance(each, ast.Name)), key=lambda e: e.col_offset)
    own = elements(scope, loop)
    names: List[ast.expr] = [ast.Name(id=each.id, ctx=ast.Load()) for each in ordered if each.id in own]
    indexed = [each for each in (_indexed(scope, loop, use) for use in uses) if each is not None]
    # The first one in the code: several lists side by side have one entry a layer each.
    return (*names, *sorted(indexed, key=lambda each: (each.lineno, each.col_offset))[:1])


def calls_part(scope: Scope, node: ast.Call) -> bool:
    """Return whether a call runs something that the module holds, or a module of a loop of its own."""
    if scope.path(node.func) or any(scope.path(argument) for argument in node.args):
        return not looks(scope, node)
    return isinstance(node.func, ast.Name) and any(
        node.func.id in names_in(loop.target) for loop in ast.walk(scope.tree) if isinstance(loop, ast.For)
    )


def attributes(scope: Scope, nodes: Sequence[ast.AST]) -> FrozenSet[str]:
    """Return the attributes of the module in expressions, and in what their local names are made of."""
    return frozenset(name for each in scope.sources(*nodes) for name in scope.path(each)[:1])


def for_loops(scope: Scope) -> List[ast.For]:
    """Return the loops of a function that go through something."""
    return [node for node in ast.walk(scope.tree) if isinstance(node, ast.For)]
