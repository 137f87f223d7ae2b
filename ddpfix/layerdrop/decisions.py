"""Finds the comparisons that decide whether a layer runs, and proves from a function's syntax tree that they do.

Three things have to be certain: the one side is a number drawn uniformly between known bounds, the other one a rate
that nothing drawn and no data is part of, and its truth decides whether a module of a list of layers is called (or,
where a layer draws for itself, whether the layer does anything at all). Every other draw is the program's own.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from types import FunctionType
from typing import Any, FrozenSet, Iterator, NamedTuple, Optional, Tuple

from ddpfix.layerdrop import loops, source, unshared
from ddpfix.layerdrop.loops import Decision
from ddpfix.layerdrop.numbers import Number, Scope, may_draw, outer_of
from ddpfix.layerdrop.source import names_in, names_of
from ddpfix.patching.site import PatchError

# Where toolkits draw for their layers, beside the methods that these call by their names; a list of layers that drops
# some does it where it is iterated over.
METHODS = ("forward", "extract_features", "_forward", "__iter__")
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC = frozenset((len, min, max, float, int, abs, getattr))
_NOT_UNIFORM = "ddpfix cannot prove that it draws one uniform number for each layer"
_ELSEWHERE = "it draws in another function"
_OTHER = (ast.operator, ast.unaryop, ast.expr_context)


class Found(NamedTuple):
    """A function that draws for layers.

    Attributes:
        scope: of its definition.
    """

    scope: Scope
    decisions: Tuple[Decision, ...]


_NOTHING = Found(Scope(ast.parse("def _(): 0").body[0], {}), ())  # type: ignore[arg-type]


def of(function: Any, owner: Optional[type] = None) -> Found:
    """Return the decisions of a function below all decorators; none where it draws nothing.

    Args:
        owner: the class whose method it is, whose other methods may draw for it; None where that is not known.

    Raises:
        PatchError: it is no Python function, or its source is unavailable, or is not what runs.
    """
    if not isinstance(function, FunctionType):
        raise PatchError(f"{function!r} is not a Python function")
    return read(function, owner) if draws(function, owner) else _NOTHING


# By the function itself: each class is asked several times, and reading a source takes milliseconds. Only functions
# that draw come here, among the thousands of a process that has imported many models.
@functools.lru_cache(maxsize=512)
def read(function: FunctionType, owner: Optional[type]) -> Found:
    """Return the decisions of a function, read whether it draws or not; PatchError as :func:`of`."""
    scope = Scope(source.tree_of(function), outer_of(function))
    scope.drawing = frozenset(_drawing(scope, function, owner))
    given = handed(function, owner) if owner is not None and loops.for_loops(scope) == [] else None
    return in_scope(scope, given, function.__name__ in METHODS)


def draws(function: FunctionType, owner: Optional[type]) -> bool:
    """Return whether a function names a draw, or another function that does, from its code alone."""
    return may_draw(function) or any(may_draw(each) for each in _named(function, owner))


def _named(function: FunctionType, owner: Optional[type]) -> Iterator[FunctionType]:
    """Yield the functions that a function may call by their names: of its module, and methods of its class."""
    for name in names_of(function.__code__):
        method = getattr(_method(owner, name), "__func__", _method(owner, name))
        for each in (function.__globals__.get(name), method):
            if type(each) is FunctionType:
                yield each


def _method(owner: Optional[type], name: str) -> Any:
    levels = () if owner is None else owner.__mro__
    return next((vars(level)[name] for level in levels if name in vars(level)), None)


def _drawing(scope: Scope, function: FunctionType, owner: Optional[type]) -> Iterator[ast.Call]:
    """Yield the calls of functions of its module, and of methods of its class, that draw."""
    kind = function.__qualname__.rpartition(".")[0].rpartition(".")[2].lstrip("_")
    for node in ast.walk(scope.tree):
        if not isinstance(node, ast.Call):
            continue
        path = scope.path(node.func)
        called = scope.object(node.func) if isinstance(node.func, ast.Name) else None
        if len(path) == 1:
            is_private = path[0].startswith("__") and not path[0].endswith("__")
            called = _method(owner, f"_{kind}{path[0]}" if is_private else path[0])
        called = inspect.unwrap(getattr(called, "__func__", called)) if called is not None else None
        if type(called) is FunctionType and may_draw(called):
            yield node


def in_scope(scope: Scope, given: Optional[Given] = None, is_whole: bool = True) -> Found:
    """Return the decisions of a function whose scope is known.

    Args:
        given: the layers that a loop of another method hands to it, if one does.
        is_whole: whether it is all that its module does, and not a part of that.
    """
    nodes = [node for node in ast.walk(scope.tree) if isinstance(node, (ast.Compare, ast.Call))]
    found = [each for each in (_decision(scope, node, given, is_whole) for node in nodes) if each is not None]
    return Found(scope, tuple(found or unshared.in_scope(scope)))


def _decision(scope: Scope, node: Any, given: Optional[Given], is_whole: bool) -> Optional[Decision]:
    """Return the decision that a comparison with something drawn takes; None if it decides about no layer."""
    kinds = (ast.FunctionDef, ast.Lambda, ast.comprehension)
    is_nested = any(isinstance(each, kinds) for each in scope.above(node))
    if is_nested or scope.draw_in(node) is None or _is_inner(scope, node):
        return None
    loop = scope.loop(node)
    if isinstance(loop, ast.For):
        uses = loops.uses(scope, loop)
        outcomes = loops.outcomes_of(scope, loop.body, node, uses.__contains__)
        skip = loops.skipping_truth(outcomes, whole=True) if uses else None
        if skip is not None:
            layers = loops.layers_of_turn(scope, loop, uses)
            return _checked(scope, node, skip, layers, loops.attributes(scope, [loop.iter, *layers]), False)
    is_order = isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS)
    if loop is not None or not (is_order or node in scope.drawing):
        return None
    if given is not None:
        return _of_given(scope, node, given)
    return _by_itself(scope, node) if is_whole else None


def _by_itself(scope: Scope, node: ast.expr) -> Optional[Decision]:
    """Return the decision of a module about itself."""
    calls = {each for each in ast.walk(scope.tree) if isinstance(each, ast.Call) and loops.calls_part(scope, each)}
    outcomes = loops.outcomes_of(scope, scope.tree.body, node, calls.__contains__)
    skip = loops.skipping_truth(outcomes, whole=False)
    return None if skip is None else _checked(scope, node, skip, (), frozenset(), bool(outcomes(skip).reached))


def _of_given(scope: Scope, node: ast.expr, given: Given) -> Optional[Decision]:
    """Return the decision about a layer that the function was handed, which no public encoder has: it is not shared."""
    calls = {each for each in ast.walk(scope.tree) if isinstance(each, ast.Call) and given.name in names_in(each)}
    outcomes = loops.outcomes_of(scope, scope.tree.body, node, calls.__contains__)
    skip = loops.skipping_truth(outcomes, whole=True) if len(scope.values.get(given.name, ())) == 1 else None
    if skip is None:
        return None
    layers = (ast.Name(id=given.name, ctx=ast.Load()),)
    return _checked(scope, node, skip, layers, given.holders, False)._replace(refusal=_ELSEWHERE)


def _is_inner(scope: Scope, node: ast.AST) -> bool:
    """Return whether a condition is none of its own: a part of a comparison, a draw, or whether there was a draw."""
    if isinstance(node, ast.Compare):
        return any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops)
    if not isinstance(node, ast.Call):
        return False
    has_compare = any(isinstance(each, ast.Compare) for each in ast.walk(node))
    return has_compare or _is_compared(scope, node) or scope.number(node) is not None


def _is_compared(scope: Scope, node: ast.Call) -> bool:
    """Return whether a call is a part of an expression that is examined as a whole."""
    above = next(scope.above(node), None)
    while isinstance(above, (ast.Attribute, ast.BinOp, ast.Subscript, ast.keyword, ast.Starred)):
        above = scope.parents[above]
    return isinstance(above, (ast.Compare, ast.Call))


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
        refusal = _ELSEWHERE if scope.draw_in(node) in scope.drawing else _NOT_UNIFORM
    elif _is_compared_again(scope, node, number):
        refusal = "it compares the number that it draws a second time"
    elif rate is None:
        refusal = "it compares the number that it draws with something other than a rate of the module"
    running = [loop for loop in loops.for_loops(scope) if loops.uses(scope, loop)]
    return Decision(node, skip, number, is_left, rate, layers, holders, is_part, len(running) < 2, refusal)


def _is_compared_again(scope: Scope, node: ast.AST, number: Number) -> bool:
    """Return whether another condition asks for the same number: it would have an answer of its own."""
    others = (each for each in ast.walk(scope.tree) if isinstance(each, ast.Compare) and each is not node)
    return any(not _is_inner(scope, each) and scope.has_one_of(each, number.draws) for each in others)


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
    if any(name in names_in(loop.target) - loops.elements(scope, loop) for loop in loops.for_loops(scope)):
        return len(scope.values[name]) == 1
    source = scope.iterated(name)
    if source is not None:
        # An entry of a list of rates beside that of the layers.
        return is_rate(scope, source, seen | {name})
    return all(value is not None and is_rate(scope, value, seen | {name}) for value in scope.values[name])


class Given(NamedTuple):
    """A parameter that is a layer of these holders."""

    name: str
    holders: FrozenSet[str]


def handed(function: FunctionType, owner: type) -> Optional[Given]:
    """Return the parameter of a method for which a loop of its class has a layer."""
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    for scope in _callers(function, owner):
        calls = [node for node in ast.walk(scope.tree) if isinstance(node, ast.Call)]
        for node in [each for each in calls if scope.path(each.func) == (function.__name__,)]:
            loop = scope.loop(node)
            turns = loops.elements(scope, loop) if isinstance(loop, ast.For) else frozenset()
            given = [*zip(names, node.args), *((word.arg, word.value) for word in node.keywords)]
            for name, value in given:
                if name and isinstance(loop, ast.For) and isinstance(value, ast.Name) and value.id in turns:
                    return Given(name, loops.attributes(scope, [loop.iter]))
    return None


def _callers(function: FunctionType, owner: type) -> Iterator[Scope]:
    """Yield the methods of a class that name a function, and whose source can be read."""
    own = [each for level in owner.__mro__ for each in vars(level).values()]
    for each in own:
        if type(each) is FunctionType and each is not function and function.__name__ in names_of(each.__code__):
            with contextlib.suppress(PatchError):
                yield Scope(source.tree_of(each), outer_of(each))
