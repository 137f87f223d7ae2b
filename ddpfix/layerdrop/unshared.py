"""Finds draws that decide about layers in a way that ranks cannot share: they are named, none is left in silence."""

from __future__ import annotations

import ast
from typing import Any, Iterator, List, Optional, Tuple

from ddpfix.layerdrop import loops
from ddpfix.layerdrop.loops import Decision
from ddpfix.layerdrop.numbers import Scope

_DRAWN_LAYERS = "it draws the layers themselves"
_OWN_COUNT = "it counts the layers in a while loop"
_NO_LOOP = "it skips a single layer outside of a loop"
_CHANGED = "ddpfix cannot prove that it draws one uniform number for each layer"


def in_scope(scope: Scope) -> List[Decision]:
    """Return such decisions of a function in which no other was found."""
    return [*_read_entries(scope), *_drawn_layers(scope), *_outside_of_for(scope)][:1]


def _refused(node: ast.AST, layers: Tuple[ast.expr, ...], scope: Scope, why: str) -> Decision:
    holders = loops.attributes(scope, layers)
    return Decision(node, True, None, True, None, layers, holders, False, False, why)


def _is_drawn_here(scope: Scope, node: ast.AST) -> bool:
    """Return whether an expression is drawn in this function: what another one gives need not be what it draws."""
    return scope.draw_in(node) not in (None, *scope.drawing)


def _drawn_layers(scope: Scope) -> Iterator[Decision]:
    """``for layer in random.sample(list(self.layers), 3)``, or a slice that ends at a number that was drawn."""
    for loop in loops.for_loops(scope):
        names = [each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)]
        sources = [source for source in map(scope.iterated, names) if source is not None] or [loop.iter]
        for source in sources:
            is_drawn = _is_drawn_here(scope, source) and scope.number(source) is None
            if is_drawn and loops.of_module(scope, source) and loops.uses(scope, loop):
                yield _refused(loop, (source,), scope, _DRAWN_LAYERS)


def _read_entries(scope: Scope) -> Iterator[Decision]:
    """``if keep[i]`` of a vector of truths that was drawn before the loop."""
    for loop in loops.for_loops(scope):
        uses = loops.uses(scope, loop)
        for node in _conditions(loop) if uses else ():
            if _is_drawn_here(scope, node):
                outcomes = loops.outcomes_of(scope, loop.body, node, uses.__contains__)
                if loops.skipping_truth(outcomes, whole=True) is not None:
                    yield _refused(node, (loop.iter, *loops.layers_of_turn(scope, loop, uses)), scope, _CHANGED)


def _conditions(loop: ast.AST) -> Iterator[ast.AST]:
    """Yield the names and entries in the tests of a loop."""
    for statement in ast.walk(loop):
        if isinstance(statement, (ast.If, ast.IfExp)):
            for node in ast.walk(statement.test):
                if isinstance(node, (ast.Name, ast.Subscript)):
                    yield node


def _outside_of_for(scope: Scope) -> Iterator[Decision]:
    """``if random.random() > rate: x = self.layers[1](x)``, by itself or in a ``while`` loop that counts the layers."""
    calls = [node for node in ast.walk(scope.tree) if isinstance(node, ast.Call) and _layer_in(scope, node) is not None]
    for node in ast.walk(scope.tree) if calls else ():
        loop = scope.loop(node) if isinstance(node, ast.Compare) and scope.draw_in(node) is not None else scope.tree
        if loop is None or isinstance(loop, ast.While):
            body = scope.tree.body if loop is None else loop.body
            outcomes = loops.outcomes_of(scope, body, node, set(calls).__contains__)
            if loops.skipping_truth(outcomes, whole=loop is not None) is not None:
                own = [call for call in calls if loop is None or loop in scope.above(call)]
                yield _refused(node, _layers(scope, own), scope, _NO_LOOP if loop is None else _OWN_COUNT)


def _layer_in(scope: Scope, node: ast.Call) -> Optional[ast.expr]:
    """Return ``self.layers`` of ``self.layers[1]`` that a call calls, or is handed."""
    for each in (node.func, *node.args):
        if isinstance(each, ast.Subscript) and scope.path(each.value):
            return each.value
    return None


def _layers(scope: Scope, calls: List[Any]) -> Tuple[ast.expr, ...]:
    found = [_layer_in(scope, node) for node in calls]
    return tuple(each for each in found if each is not None)[:1]
