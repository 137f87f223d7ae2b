"""The loops of a function over modules: which calls run the module of a turn, and which of them one comparison decides.

The statements of a loop's body, or of a function, are followed twice, with either truth of the comparison. All other
conditions are unknown, but for those that hold wherever layers are skipped: the module trains, and its rate is not 0.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddpfix.layerdrop.numbers import Number, Scope
from ddpfix.layerdrop.source import index_of, names_in

# True, False, or None where it is unknown.
Truth = Optional[bool]
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
) -> Callable[[bool], Outcome]:
    return lambda truth: Walk(node, truth, scope.holds, runs).outcome(body)


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


class Outcome:
    """What runs with one truth of the comparison.

    Attributes:
        runs: whether any of the calls runs: on all ways, on none, or (None) on some.
        reached: the calls that run on some way.
    """

    def __init__(self, runs: Truth, reached: Set[ast.AST]) -> None:
        self.runs, self.reached = runs, reached


def skipping_truth(outcomes: Callable[[bool], Outcome], whole: bool) -> Optional[bool]:
    """Return the truth with which fewer calls run; None where the comparison does not decide about them.

    Args:
        whole: whether all of the calls together are one layer, which one of them runs.
    """
    for truth in (True, False):
        fewer, more = outcomes(truth), outcomes(not truth)
        if more.runs is False or not fewer.reached <= more.reached or (whole and fewer.runs is True):
            continue
        if fewer.reached != more.reached or (more.runs is True and fewer.runs is not True):
            return truth
    return None


class Walk:
    """One way through statements with a given truth of the comparison.

    Args:
        known: ``known(condition)`` is the truth of other conditions, None where that is unknown.
        runs: ``runs(call)``: whether a node is one of the calls to be found.
    """

    def __init__(
        self,
        atom: ast.AST,
        truth: bool,
        known: Callable[[ast.AST], Truth],
        runs: Callable[[ast.AST], bool],
    ) -> None:
        self._atom, self._truth, self._known, self._runs = atom, truth, known, runs
        self._names: Dict[str, Truth] = {}
        # Whether a call has run on the way to here, and on the ways that have ended.
        self._run: Truth = False
        self._ended: List[Truth] = []
        self._reached: Set[ast.AST] = set()

    def outcome(self, statements: Sequence[ast.stmt]) -> Outcome:
        """Follow the statements and return what has run."""
        if self._goes_on(statements):
            self._ended.append(self._run)
        return Outcome(_common(self._ended), self._reached)

    def _goes_on(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; False where none of their ways leads beyond them."""
        return all(self._statement(statement) for statement in statements)

    def _statement(self, statement: Any) -> bool:
        if isinstance(statement, ast.If):
            return self._branch(statement)
        if isinstance(statement, (ast.For, ast.While, ast.Try, ast.AsyncFor)):
            return self._repeated(statement)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return True
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                self._expression(item.context_expr)
            return self._goes_on(statement.body)
        self._expression(statement)
        if isinstance(statement, (ast.Return, ast.Continue, ast.Break, ast.Raise)):
            self._ended.append(self._run)
            return False
        plain = isinstance(statement, ast.Assign) and all(isinstance(each, ast.Name) for each in statement.targets)
        if plain or isinstance(statement, ast.AnnAssign):
            self._set(_stored(statement), None if statement.value is None else self.truth(statement.value))
        else:
            self._set(_stored(statement), None)
        return True

    def _branch(self, statement: ast.If) -> bool:
        self._expression(statement.test)
        truth, names, run = self.truth(statement.test), dict(self._names), self._run
        left = []
        for body, taken in ((statement.body, truth), (statement.orelse, _not(truth))):
            self._names, self._run = dict(names), run
            if taken is not False and self._goes_on(body):
                left.append((self._names, self._run))
        if left:
            self._names, self._run = _joined([each for each, _ in left]), _common([each for _, each in left])
        return bool(left)

    def _repeated(self, statement: Any) -> bool:
        """Follow an inner loop or a try: it may run in part, and what it assigns is unknown in it and after it."""
        for part in (getattr(statement, "iter", None), getattr(statement, "test", None)):
            self._expression(part)
        before = self._run
        bodies = [getattr(statement, name, ()) for name in ("body", "orelse", "finalbody")]
        for body in (*bodies, *(handler.body for handler in getattr(statement, "handlers", ()))):
            self._set(_stored(statement), None)
            self._goes_on(body)
            if not (isinstance(statement, ast.Try) and body is statement.body):
                self._run = _common([before, self._run])
        self._set(_stored(statement), None)
        return True

    def _expression(self, node: Optional[ast.AST]) -> None:
        """Note the calls in an expression, on the ways on which they are evaluated."""
        if node is None:
            return
        if isinstance(node, ast.IfExp):
            self._expression(node.test)
            truth = self.truth(node.test)
            self._either(((node.body, truth), (node.orelse, _not(truth))))
            return
        if isinstance(node, ast.BoolOp):
            self._expression(node.values[0])
            for before, value in zip(node.values, node.values[1:]):
                goes = self.truth(before) if isinstance(node.op, ast.And) else _not(self.truth(before))
                if goes is False:
                    break
                self._either(((value, goes), (None, _not(goes))))
            return
        for child in ast.iter_child_nodes(node):
            self._expression(child)
        if isinstance(node, ast.NamedExpr):
            self._names[node.target.id] = self.truth(node.value)
        if self._runs(node):
            self._reached.add(node)
            self._run = True

    def _either(self, ways: Sequence[Tuple[Optional[ast.AST], Truth]]) -> None:
        """One of two expressions (or nothing), as far as it is known which."""
        before, ended = self._run, []
        for node, taken in ways:
            self._run = before
            if taken is not False:
                self._expression(node)
                ended.append(self._run)
        self._run = _common(ended)

    def _set(self, names: FrozenSet[str], truth: Truth) -> None:
        self._names.update(dict.fromkeys(names, truth))

    def truth(self, node: ast.AST) -> Truth:
        """Return the truth of a condition."""
        if node is self._atom:
            return self._truth
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.NamedExpr):
            return self.truth(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _not(self.truth(node.operand))
        if isinstance(node, ast.BoolOp):
            return _all([self.truth(value) for value in node.values], isinstance(node.op, ast.And))
        if isinstance(node, ast.IfExp):
            test, ways = self.truth(node.test), (self.truth(node.body), self.truth(node.orelse))
            return ways[not test] if test is not None else (ways[0] if ways[0] == ways[1] else None)
        if isinstance(node, ast.Constant):
            return bool(node.value)
        if isinstance(node, ast.Call):
            return self._converted(node)
        return self._known(node)

    def _converted(self, node: ast.Call) -> Truth:
        """``bool(condition)`` and ``condition.item()`` have the truth of the condition."""
        if isinstance(node.func, ast.Name) and node.func.id == "bool" and len(node.args) == 1:
            return self.truth(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            return self.truth(node.func.value)
        return None


def _stored(node: ast.AST) -> FrozenSet[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return frozenset(each.id for each in names if not isinstance(each.ctx, ast.Load))


def _joined(ways: Sequence[Dict[str, Truth]]) -> Dict[str, Truth]:
    return {name: _common([way.get(name) for way in ways]) for name in {*ways[0], *ways[-1]}}


def _common(truths: Sequence[Truth]) -> Truth:
    """Return the truth that holds on all ways."""
    return truths[0] if truths and all(each is truths[0] for each in truths) else None


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _all(truths: Sequence[Truth], conjunction: bool) -> Truth:
    """Return the truth of a conjunction, or of a disjunction."""
    if (not conjunction) in truths:
        return not conjunction
    return None if None in truths else conjunction
