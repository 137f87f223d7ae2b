"""Finds the comparisons that decide whether a layer runs, and proves from a function's syntax tree that they do.

Three things have to be certain: the one side is a number drawn uniformly between known bounds, the other one a rate
that the module or its config holds, and its truth decides whether a module of a list of layers is called (or, where a
layer draws for itself, whether the layer does anything at all). Every other draw is the program's own.
"""

from __future__ import annotations

import ast
import functools
from types import FunctionType
from typing import Any, Callable, FrozenSet, NamedTuple, Optional, Sequence, Tuple

from ddpfix.layerdrop import loops, source
from ddpfix.layerdrop.numbers import Number, Scope, may_draw, outer_of
from ddpfix.layerdrop.source import constant, index_of
from ddpfix.patching.site import PatchError

# Where toolkits draw for their layers, beside the methods that these call by their names; a list of layers that drops
# some does it where it is iterated over.
METHODS = ("forward", "extract_features", "_forward", "__iter__")
NOT_UNIFORM = "ddpfix cannot prove that it draws one uniform number for each layer"
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Rate(NamedTuple):
    """What a number is compared with.

    Attributes:
        path: the attribute of the module, a number or a list with one a layer; empty for a constant.
        key: what is asked of it, as in ``self.config.get("layerdrop", 0)``; empty where nothing is.
        otherwise: the constant, or what there is without the attribute.
    """

    path: Tuple[str, ...]
    key: str = ""
    otherwise: float = 0.0


class Decision(NamedTuple):
    """A comparison that decides whether a layer runs.

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

    node: ast.Compare
    skip: bool
    number: Optional[Number]
    is_left: bool
    rate: Optional[Rate]
    layers: Tuple[ast.expr, ...]
    holders: FrozenSet[str]
    is_part: bool
    is_only_run: bool
    refusal: str


class Found(NamedTuple):
    """A function, and what decides about layers in it."""

    scope: Scope
    decisions: Tuple[Decision, ...]


NOTHING = Found(Scope(ast.parse("def _(): 0").body[0], {}), ())  # type: ignore[arg-type]


def of(function: Any) -> Found:
    """Return the decisions of a function below all decorators; none where it draws nothing.

    Raises:
        PatchError: it is no Python function, or its source is unavailable, or is not what runs.
    """
    if not isinstance(function, FunctionType):
        raise PatchError(f"{function!r} is not a Python function")
    return read(function) if may_draw(function) else NOTHING


# By the function itself: each class is asked several times, and reading a source takes milliseconds. Only functions
# that draw come here, among the thousands of a process that has imported many models.
@functools.lru_cache(maxsize=512)
def read(function: FunctionType) -> Found:
    """Return the decisions of a function, read whether it draws or not; PatchError as :func:`of`."""
    return in_scope(Scope(source.tree_of(function), outer_of(function)), function.__name__ in METHODS)


def in_scope(scope: Scope, is_whole: bool = True) -> Found:
    """Return the decisions of a function whose scope is known.

    Args:
        is_whole: whether it is all that its module does, and not a part of that.
    """
    compared = [node for node in ast.walk(scope.tree) if isinstance(node, ast.Compare)]
    random = [node for node in compared if not isinstance(node.ops[0], (ast.Is, ast.IsNot)) and scope.draws_in(node)]
    found = [_decision(scope, node, random, is_whole) for node in random]
    return Found(scope, tuple(each for each in found if each is not None))


def _decision(scope: Scope, node: ast.Compare, random: Sequence[ast.Compare], is_whole: bool) -> Optional[Decision]:
    """Return the decision that a comparison with something drawn takes; None if it decides about no layer."""
    kinds = (ast.FunctionDef, ast.Lambda, ast.comprehension)
    if any(isinstance(each, kinds) for each in scope.above(node)):
        return None
    loop, skips = scope.loop(node), None
    layers: Tuple[ast.expr, ...] = ()
    holders: FrozenSet[str] = frozenset()
    if isinstance(loop, ast.For):
        uses = loops.uses(scope, loop)
        skips = loops.skipping(scope, loop.body, node, uses, whole=True)
        layers = loops.layers_of_turn(scope, loop, uses)
        holders = loops.attributes(scope, loop.iter, *layers)
    elif loop is None and is_whole and isinstance(node.ops[0], _ORDERS):
        skips = loops.skipping(scope, scope.tree.body, node, loops.parts_called(scope), whole=False)
    if skips is None:
        return None
    number, rate, is_left = None, None, True
    if len(node.ops) == 1 and isinstance(node.ops[0], _ORDERS):
        is_left = bool(scope.draws_in(node.left))
        drawn, other = (node.left, node.comparators[0])[:: 1 if is_left else -1]
        number, rate = scope.number(drawn), rate_of(scope, other)
    if number is not None and (number.is_vector or not _one_a_turn(scope, node, number)):
        number = None
    refusal = ""
    if number is None:
        refusal = NOT_UNIFORM
    elif any(scope.draws_in(each) & {*number.draws} for each in random if each is not node):
        # The other condition would have an answer of its own.
        refusal = "it compares the number that it draws a second time"
    elif rate is None:
        refusal = "it compares the number that it draws with something other than a rate of the module"
    running = [each for each in scope.loops if loops.uses(scope, each)]
    is_part = not layers and bool(skips[1].reached)
    return Decision(node, skips[0], number, is_left, rate, layers, holders, is_part, len(running) < 2, refusal)


def _one_a_turn(scope: Scope, node: ast.AST, number: Number) -> bool:
    """Return whether a number is drawn anew for each comparison; the entries of a vector were drawn before the loop."""
    around = {scope.tree, *scope.above(node)}
    for draw in () if number.is_entry else number.draws:
        statement = next(each for each in (draw, *scope.above(draw)) if isinstance(each, ast.stmt))
        if scope.loop(draw) is scope.loop(node) and scope.parents[statement] in around:
            return True
    return number.is_entry


def rate_of(scope: Scope, node: ast.expr) -> Optional[Rate]:
    """Return the rate that an expression reads; None for anything else, which data may be a part of."""
    value = constant(node)
    if value is not None:
        return Rate((), "", value)
    loop = scope.loop(node)
    if isinstance(node, ast.Subscript) and isinstance(loop, ast.For) and scope.counts(loop, index_of(node)):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        key, otherwise = [*node.args, None, None][:2]
        if isinstance(key, ast.Constant) and scope.path(node.func.value):
            default = constant(otherwise) if otherwise is not None else None
            return Rate(scope.path(node.func.value), str(key.value), default or 0.0)
    return Rate(scope.path(node)) if scope.path(node) else None


def paths(decisions: Sequence[Decision]) -> Tuple[Tuple[str, ...], ...]:
    """Return where rates are read, in order: each as ``("layerdrop",)`` or ``("config", "layerdrop")``."""
    read = [each.rate.path for each in decisions if each.rate is not None and not each.rate.key]
    return tuple(dict.fromkeys(path for path in read if len(path) == 1 or path[:1] == ("config",)))


def reader(decisions: Sequence[Decision]) -> Callable[[Any], float]:
    """Return a function that gives how often a module skips a layer, the largest share if there are several."""
    readers = [_reader(each) for each in decisions if each.rate is not None]
    return readers[0] if len(readers) == 1 else lambda module: max((read(module) for read in readers), default=0.0)


def _reader(decision: Decision) -> Callable[[Any], float]:
    # These are read in every forward, which torch.compile may follow.
    path, key, otherwise = decision.rate or Rate(())
    is_below = isinstance(decision.node.ops[0], (ast.Lt, ast.LtE)) == decision.is_left
    skips_below = is_below == decision.skip

    def read(module: Any) -> float:
        value = module if path else otherwise
        for name in path:
            # An instance may lack the attributes of some branches of its forward.
            value = getattr(value, name, 0.0)
        if key:
            value = value.get(key, otherwise) if hasattr(value, "get") else otherwise
        rate = value if isinstance(value, float) else _number(value)
        return rate if skips_below else min(max(1 - rate, 0.0), 1.0)

    return read


def _number(value: Any) -> float:
    if isinstance(value, (list, tuple)):
        return max(map(_number, value), default=0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0
