"""What a module holds by a name, read at a time when the program itself would not read it.

A property is the program's own code: it runs here only where its source shows that it does nothing but read.
"""

from __future__ import annotations

import ast
import builtins
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, Iterator, Sequence, Tuple

from ddpfix.layerdrop import source
from ddpfix.patching.site import PatchError

# Stands for what only a forward can read.
UNREADABLE = object()
_READERS = ("list", "tuple", "len", "range", "reversed", "zip", "enumerate", "min", "max", "sum", "float", "int", "abs")
_DOES_MORE = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete, ast.Import, ast.ImportFrom)
# What a class has that gives an attribute, and runs none of the program's code.
_PLAIN = (FunctionType, MethodType, staticmethod, classmethod, type, MemberDescriptorType, GetSetDescriptorType)


def held(module: Any, path: Sequence[str]) -> Any:
    """Return what a module holds by a path of names; None where it lacks it, UNREADABLE where to read it runs code."""
    value = module
    for name in path:
        if not _may_read(value, name):
            return UNREADABLE
        try:
            value = getattr(value, name, None)
        except Exception:
            return UNREADABLE
    return value


def _may_read(owner: Any, name: str) -> bool:
    """Return whether an attribute is plain data, or a property that only reads."""
    found = next((vars(level)[name] for level in type(owner).__mro__ if name in vars(level)), None)
    if not hasattr(type(found), "__get__") or isinstance(found, _PLAIN):
        return True
    if isinstance(found, property):
        return isinstance(found.fget, FunctionType) and _only_reads(found.fget, owner)
    # What keeps its value (functools.cached_property) has left it in the object.
    return name in getattr(owner, "__dict__", ()) and not hasattr(type(found), "__set__")


def _only_reads(getter: FunctionType, owner: Any) -> bool:
    try:
        tree = source.tree_of(getter)
    except PatchError:
        return False
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    stores = (node for node in nodes if isinstance(node, (ast.Attribute, ast.Subscript)))
    if any(isinstance(node, _DOES_MORE) for node in nodes) or not all(_is_reader(each, getter) for each in calls):
        return False
    if any(not isinstance(node.ctx, ast.Load) for node in stores) or not tree.args.args:
        return False
    # What it reads of the object itself may be a property again.
    return all(held(owner, path) is not UNREADABLE for path in _paths(nodes, tree.args.args[0].arg))


def _is_reader(call: ast.Call, getter: FunctionType) -> bool:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    own = (*getter.__code__.co_varnames, *getter.__code__.co_freevars, *getter.__globals__)
    return name in _READERS and name not in own and hasattr(builtins, name)


def _paths(nodes: Sequence[ast.AST], this: str) -> Iterator[Tuple[str, ...]]:
    """Yield the attributes that are read from an object, as paths."""
    for node in nodes:
        path, inner = [], node
        while isinstance(inner, ast.Attribute):
            path.append(inner.attr)
            inner = inner.value
        if path and isinstance(inner, ast.Name) and inner.id == this:
            yield tuple(path[::-1])
