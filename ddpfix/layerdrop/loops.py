"""The loops of a function over modules: which calls run the module of a turn, and which of them one comparison decides.

The statements of a loop's body, or of a function, are followed on all ways, with either truth of the comparison. All
other conditions are unknown, but for those that hold wherever layers are skipped: the module trains, its rate is not 0.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from ddpfix.layerdrop.numbers import Scope
from ddpfix.layerdrop.source import index_of, names_in

# True, False, or None where it is unknown.
Truth = Optional[bool]
# A way through statements: what is known of local names, and whether a call has run.
Names = FrozenSet[Tuple[str, bool]]
Way = Tuple[Names, bool]
# Calls that are no use of a layer: they look at it.
_LOOKS = frozenset(
    (isinstance, issubclass, len, id, type, getattr, hasattr, print, repr, str, bool, int, float, zip, enumerate)
)


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
        and not (isinstance(node, ast.Call) and _looks(scope, node))
    }


def _looks(scope: Scope, node: ast.Call) -> bool:
    function = scope.object(node.func)
    return any(function is each for each in _LOOKS)


def elements(scope: Scope, loop: ast.For) -> FrozenSet[str]:
    """Return the names that a loop gives to what it iterates over; a count is none of them."""
    target, iterated = loop.target, loop.iter
    # It has something that the module holds, itself or by local names.
    if not {scope.module, "super"} & {each.id for each in scope.sources(iterated) if isinstance(each, ast.Name)}:
        return frozenset()
    while isinstance(iterated, ast.Call) and scope.object(iterated.func) in (enumerate, range):
        if scope.object(iterated.func) is range or not isinstance(target, ast.Tuple):
            return frozenset()
        target, iterated = target.elts[-1], iterated.args[0]
    return names_in(target)


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


def parts_called(scope: Scope) -> Set[ast.AST]:
    """Return the calls of a function that run something that the module holds, or a module of a loop of its own."""
    turns = frozenset().union(*(names_in(loop.target) for loop in scope.loops))
    calls = [node for node in ast.walk(scope.tree) if isinstance(node, ast.Call)]
    of_module = (each for each in calls if any(map(scope.path, (each.func, *each.args))) and not _looks(scope, each))
    return {*of_module, *(each for each in calls if isinstance(each.func, ast.Name) and each.func.id in turns)}


def tests(scope: Scope) -> List[Tuple[Any, Sequence[ast.AST]]]:
    """Return the conditions of a function that something drawn is a part of, each with all that it is made of."""
    found: List[Any] = []
    for node in ast.walk(scope.tree):
        found += [node.test] if isinstance(node, (ast.If, ast.IfExp, ast.While)) else getattr(node, "ifs", [])
    return [(test, [*scope.sources(test)]) for test in found if scope.draws_in(test)]


def attributes(scope: Scope, *nodes: ast.AST) -> FrozenSet[str]:
    """Return the attributes of the module in expressions, and in what their local names are made of."""
    return frozenset(name for each in scope.sources(*nodes) for name in scope.path(each)[:1])


class Outcome:
    """What runs of some calls in statements, with a given truth of a comparison.

    Args:
        known: ``known(condition)`` is the truth of other conditions, None where that is unknown.

    Attributes:
        runs: whether any of the calls runs: on all ways, on none, or (None) on some.
        reached: the calls that run on some way.
    """

    def __init__(
        self,
        statements: Sequence[ast.stmt],
        comparison: ast.AST,
        truth: bool,
        known: Callable[[ast.AST], Truth],
        calls: Set[ast.AST],
    ) -> None:
        self._comparison, self._truth, self._known, self._calls = comparison, truth, known, calls
        # Whether a call has run on the ways that have ended.
        self._ended: Set[bool] = set()
        self.reached: Set[ast.AST] = set()
        ends = {run for _, run in self._follow(statements, {(frozenset(), False)})} | self._ended
        self.runs: Truth = ends.pop() if len(ends) == 1 else None

    def _follow(self, statements: Sequence[ast.stmt], ways: Set[Way]) -> Set[Way]:
        """Return the ways that lead beyond statements."""
        for statement in statements:
            ways = {after for names, run in ways for after in self._statement(statement, names, run)}
        return ways

    def _statement(self, node: Any, names: Names, run: bool) -> Set[Way]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return {(names, run)}
        # What the statement assigns has another value, in it and after it.
        kept = _without(names, node)
        if isinstance(node, ast.If):
            left = _without(names, node.test)
            branches: Set[Way] = set()
            for truth, ran in self._values(node.test, left, run):
                for body, taken in ((node.body, True), (node.orelse, False)):
                    branches |= self._follow(body, {(left, ran)}) if truth is not (not taken) else set()
            return branches
        if isinstance(node, (ast.With, ast.AsyncWith)):
            runs = self._in_turn([item.context_expr for item in node.items], names, run)
            return self._follow(node.body, {(_without(names, *node.items), ran) for ran in runs})
        if isinstance(node, (ast.For, ast.While, ast.Try, ast.AsyncFor)):
            heads = [each for each in (getattr(node, "iter", None), getattr(node, "test", None)) if each is not None]
            return self._repeated(node, {(kept, ran) for ran in self._in_turn(heads, kept, run)})
        if isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets):
            targets = [each.id for each in node.targets if isinstance(each, ast.Name)]
            found = self._values(node.value, _without(names, node.value), run)
            known = {truth for truth, _ in found}
            given = {(name, truth) for name in targets for truth in known if len(known) == 1 and truth is not None}
            return {(kept | given, ran) for _, ran in found}
        runs = self._in_turn([node], kept, run)
        if isinstance(node, (ast.Return, ast.Continue, ast.Break, ast.Raise)):
            self._ended |= runs
            return set()
        return {(kept, ran) for ran in runs}

    def _repeated(self, node: Any, before: Set[Way]) -> Set[Way]:
        """Follow an inner loop or a try, which may run in part."""
        after = self._follow(node.body, before)
        ways = after if isinstance(node, ast.Try) else before | after
        for handler in getattr(node, "handlers", ()):
            ways = ways | self._follow(handler.body, before | after)
        for body in (node.orelse, getattr(node, "finalbody", ())):
            ways = ways | self._follow(body, {(_without(names, node), run) for names, run in ways})
        return {(_without(names, node), run) for names, run in ways}

    def _in_turn(self, nodes: Iterable[ast.AST], names: Names, run: bool) -> Set[bool]:
        runs = {run}
        for node in nodes:
            runs = {ran for before in runs for _, ran in self._values(node, names, before)}
        return runs

    def _values(self, node: ast.AST, names: Names, run: bool) -> Set[Tuple[Truth, bool]]:
        """Return the truths that an expression may have, each with whether a call has run then."""
        if isinstance(node, ast.IfExp):
            ways = ((node.body, True), (node.orelse, False))
            tests = self._values(node.test, names, run)
            parts = [(part, ran) for truth, ran in tests for part, taken in ways if truth is not (not taken)]
            return {each for part, ran in parts for each in self._values(part, names, ran)}
        if isinstance(node, ast.BoolOp):
            stop = isinstance(node.op, ast.Or)
            stopped: Set[Tuple[Truth, bool]] = set()
            runs = {run}
            for value in node.values:
                found = {each for ran in runs for each in self._values(value, names, ran)}
                stopped |= {(stop, ran) for truth, ran in found if truth is not (not stop)}
                runs = {ran for truth, ran in found if truth is not stop}
            return stopped | {(not stop, ran) for ran in runs}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return {
                (None if truth is None else not truth, ran) for truth, ran in self._values(node.operand, names, run)
            }
        same = _same_truth(node)
        if same is not None:
            return self._values(same, names, run)
        runs = self._in_turn(ast.iter_child_nodes(node), names, run)
        if node in self._calls:
            self.reached.add(node)
            runs = {True}
        truth = self._truth if node is self._comparison else self._leaf(node, names)
        return {(truth, ran) for ran in runs}

    def _leaf(self, node: ast.AST, names: Names) -> Truth:
        if isinstance(node, ast.Name):
            return dict(names).get(node.id)
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, bool) else None
        return self._known(node)


def _same_truth(node: ast.AST) -> Optional[ast.expr]:
    """``bool(condition)``, ``condition.item()`` and ``name := condition`` have the truth of the condition."""
    if isinstance(node, ast.NamedExpr):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool" and node.args:
        return node.args[0]
    is_item = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item"
    return node.func.value if is_item else None  # type: ignore[attr-defined]


def _without(names: Names, *nodes: ast.AST) -> Names:
    """Return what is known without the names that get a value in some nodes."""
    inside = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    stored = {each.id for each in inside if not isinstance(each.ctx, ast.Load)}
    return frozenset((name, truth) for name, truth in names if name not in stored)


def skipping(
    scope: Scope, statements: Sequence[ast.stmt], comparison: ast.AST, calls: Set[ast.AST], whole: bool
) -> Optional[Tuple[bool, Outcome]]:
    """Return the truth of a comparison with which fewer calls run, and what then runs; None where it does not decide.

    Args:
        whole: whether all of the calls together are one layer, which one of them runs.
    """
    outcomes = {truth: Outcome(statements, comparison, truth, scope.holds, calls) for truth in (True, False)}
    for truth, fewer in outcomes.items():
        more = outcomes[not truth]
        if more.runs is False or not fewer.reached <= more.reached or (whole and fewer.runs is True):
            continue
        if fewer.reached != more.reached or (more.runs is True and fewer.runs is not True):
            return truth, fewer
    return None
