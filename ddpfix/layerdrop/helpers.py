"""Puts what a small function returns in the place of its call, where it draws: ``if self.drops():`` and the like.

Only the analysis and the copy of a forward have it so; the function itself stays. It is one expression of its
parameters, and what it is called with are names, constants and attributes, so that nothing is evaluated more or less
often than before.
"""

from __future__ import annotations

import ast
import copy
import inspect
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ddpfix.layerdrop import source
from ddpfix.layerdrop.numbers import Scope, may_draw, outer_of
from ddpfix.layerdrop.syntax import names_of
from ddpfix.patching.site import PatchError

# What has names of its own, or does more than to give a value.
_NOT_PLAIN = (ast.Lambda, ast.NamedExpr, ast.comprehension, ast.Await, ast.Yield, ast.YieldFrom, ast.Starred)
_SIMPLE = (ast.Name, ast.Attribute, ast.Constant, ast.expr_context)


class Helper(NamedTuple):
    """A function, by the name of the method or the global one, whose result stands in the place of its call."""

    name: str
    function: Any
    is_method: bool

    def is_still(self, module: Any, home: Dict[str, Any]) -> bool:
        """Return whether it is what a module would call, whose forward has these global names."""
        if not self.is_method:
            return home.get(self.name) is self.function
        return self.name not in vars(module) and _found(type(module), self.name) is self.function


class Inlined(NamedTuple):
    """A definition with the results of its helpers in it, and the values of the names that came with these."""

    tree: ast.FunctionDef
    values: Dict[str, Any]
    helpers: Tuple[Helper, ...]


def inlined(function: FunctionType, tree: ast.FunctionDef, owner: Optional[type]) -> Inlined:
    """Return the definition of a function with its helpers that draw in it; ``tree`` stays as it is."""
    change = _Calls(Scope(tree, outer_of(function)), function, owner)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and change.helper(node) is not None]
    if not calls:
        return Inlined(tree, {}, ())
    changed: Any = ast.fix_missing_locations(change.visit(copy.deepcopy(tree)))
    return Inlined(changed, change.values, tuple(dict.fromkeys(change.used)))


def named(function: FunctionType, owner: Optional[type]) -> Iterator[FunctionType]:
    """Yield the functions that a function may call by their names: of its module, and methods of its class."""
    for name in names_of(function.__code__):
        methods = _found(owner, name) if owner is not None else None
        for each in (function.__globals__.get(name), getattr(methods, "__func__", methods)):
            if type(each) is FunctionType:
                yield each


def _found(owner: type, name: str) -> Any:
    return next((vars(level)[name] for level in owner.__mro__ if name in vars(level)), None)


def drawing(scope: Scope, function: FunctionType, owner: Optional[type]) -> List[ast.Call]:
    """Return the calls of functions that draw and could not be written out: they have several statements, say."""
    kind = function.__qualname__.rpartition(".")[0].rpartition(".")[2].lstrip("_")
    found = []
    for node in ast.walk(scope.tree):
        path = scope.path(node.func) if isinstance(node, ast.Call) else ()
        called: Any = None
        if isinstance(node, ast.Call) and len(path) == 1 and owner is not None:
            name = f"_{kind}{path[0]}" if _is_private(node.func) else path[0]
            called = _found(owner, name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = scope.object(node.func)
        called = inspect.unwrap(getattr(called, "__func__", called)) if called is not None else None
        if isinstance(node, ast.Call) and type(called) is FunctionType and may_draw(called):
            found.append(node)
    return found


class _Calls(ast.NodeTransformer):
    """Replaces the calls of helpers."""

    def __init__(self, scope: Scope, function: FunctionType, owner: Optional[type]) -> None:
        self._scope, self._home, self._owner = scope, function.__globals__, owner
        self.values: Dict[str, Any] = {}
        self.used: List[Helper] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        helper = self.helper(node)
        result = None if helper is None else self._result(helper, node)
        if helper is None or result is None:
            return node
        self.used.append(helper)
        for each in ast.walk(result):
            ast.copy_location(each, node)
        return result

    def helper(self, node: ast.Call) -> Optional[Helper]:
        """Return the function that a call calls, if it draws and is a plain one."""
        path = self._scope.path(node.func)
        function: Any = None
        if len(path) == 1 and self._owner is not None:
            function = _found(self._owner, path[0])
        elif isinstance(node.func, ast.Name):
            function = self._scope.object(node.func)
        is_plain = type(function) is FunctionType and not hasattr(function, "__wrapped__")
        if not is_plain or inspect.isgeneratorfunction(function) or not may_draw(function):
            return None
        helper = Helper(path[0] if path else node.func.id, function, bool(path))  # type: ignore[attr-defined]
        # One of a function around this one cannot be looked up again.
        return helper if path or self._home.get(helper.name) is function else None

    def _result(self, helper: Helper, node: ast.Call) -> Optional[ast.expr]:
        """Return the expression that a call gives; None where it is not one of names and constants alone."""
        try:
            tree = source.tree_of(helper.function)
        except PatchError:
            return None
        body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
        returned = body[0] if len(body) == 1 else None
        value = returned.value if isinstance(returned, ast.Return) else None
        if value is None or any(isinstance(each, _NOT_PLAIN) or _is_private(each) for each in ast.walk(value)):
            return None
        given = _arguments(helper, tree.args, node)
        if given is None:
            return None
        names = self._names(helper, value, given)
        if names is None:
            return None
        result: ast.expr = _Names(given, names).visit(copy.deepcopy(value))
        return result

    def _names(self, helper: Helper, value: ast.expr, given: Dict[str, ast.expr]) -> Optional[Dict[str, str]]:
        """Return how the helper's global names are called in the forward, where they may stand for something else."""
        scope, names = Scope(ast.parse("def _(): 0").body[0], outer_of(helper.function)), {}  # type: ignore[arg-type]
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id not in given:
                meant = scope.object(node)
                if not isinstance(meant, (ModuleType, FunctionType, BuiltinFunctionType, type)) and not callable(meant):
                    return None
                if self._scope.object(node) is not meant:
                    names[node.id] = f"_{helper.name}_{len(self.values)}_{node.id}"
                    self.values[names[node.id]] = meant
        return names


def _is_private(node: ast.AST) -> bool:
    """Return whether a name means another attribute in another class (``self.__rate``)."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(name, str) and name.startswith("__") and not name.endswith("__")


def _arguments(helper: Helper, arguments: ast.arguments, node: ast.Call) -> Optional[Dict[str, ast.expr]]:
    """Return what the parameters of a helper are given by a call; None where that is not a name or a constant each."""
    names = [each.arg for each in (*getattr(arguments, "posonlyargs", ()), *arguments.args)]
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    defaults = arguments.defaults
    if not all(isinstance(each, ast.Constant) for each in defaults):
        # Its value is that of the moment at which the function was made.
        return None
    given: Dict[str, ast.expr] = dict(zip(names[len(names) - len(defaults) :], defaults))
    held = [node.func.value] if helper.is_method and isinstance(node.func, ast.Attribute) else []
    if len(held) + len(node.args) > len(names):
        return None
    given.update(zip(names, [*held, *node.args]))
    given.update({word.arg: word.value for word in node.keywords if word.arg is not None})
    is_known = set(given) == set(names) and all(word.arg in names for word in node.keywords)
    simple = all(isinstance(part, _SIMPLE) for value in given.values() for part in ast.walk(value))
    return given if is_known and simple else None


class _Names(ast.NodeTransformer):
    """Puts arguments in the places of parameters, and gives global names another one."""

    def __init__(self, given: Dict[str, ast.expr], names: Dict[str, str]) -> None:
        self._given, self._called = given, names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._given:
            return copy.deepcopy(self._given[node.id])
        return ast.Name(id=self._called.get(node.id, node.id), ctx=ast.Load())
