"""A short hash of a place's source, by which we recognise code that we have examined.

The hash is of the syntax tree without docstrings, annotations and line numbers, so that formatting and comments do not
count, and it is the same under every version of Python.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import textwrap
from functools import lru_cache, reduce
from types import FunctionType, ModuleType
from typing import Any, Iterator, List, Optional

# Fields that do not change what the code does, or are not there in every version of Python.
_IGNORED_FIELDS = frozenset(("annotation", "returns", "ctx", "kind", "type_comment", "type_params", "type_ignores"))
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def of_place(module: ModuleType, attribute: str) -> Optional[str]:
    """Return the hash of a function, a class or (``*``) a module; None where it is not there, or has no source.

    A method without source, such as the constructor of a dataclass, has the hash of its class, and what a decorator has
    hidden is read in the module's file.

    Args:
        module: has it.
        attribute: its path in the module.
    """
    path = [] if attribute == "*" else attribute.split(".")
    with contextlib.suppress(AttributeError, SyntaxError, ValueError):
        found: List[Any] = [reduce(getattr, path, module), reduce(getattr, path[:-1], module)]
        found[0] = inspect.unwrap(found[0])
        if type(found[0]) is FunctionType and found[0].__code__.co_name not in (path[-1], "__init__"):
            return of_file(getattr(module, "__file__", None) or "", attribute)
        for each in found:
            with contextlib.suppress(OSError, TypeError):
                return None if each is module and path else _of_object(each)
    return None


def of_file(path: str, attribute: str) -> Optional[str]:
    """Return the hash of a definition in a file, which is not imported; None where it is not there."""
    with contextlib.suppress(OSError, SyntaxError, ValueError), open(path, "rb") as file:
        tree: ast.AST = ast.parse(file.read())
        for name in attribute.split("."):
            nodes = [node for node in getattr(tree, "body", ()) if isinstance(node, _DEFINED) and node.name == name]
            if not nodes:
                return None
            tree = nodes[-1]
        return of_node(tree)
    return None


# Several patches share the constructor of DDP, which takes milliseconds to read.
@lru_cache(maxsize=None)
def _of_object(found: Any) -> str:
    return of_node(ast.parse(textwrap.dedent(inspect.getsource(found))))


def of_node(node: ast.AST) -> str:
    """Return the hash of a definition, or of a module."""
    whole = node if isinstance(node, ast.Module) else ast.Module(body=[node], type_ignores=[])  # type: ignore[list-item]
    return hashlib.sha256(canonical(whole).encode()).hexdigest()[:12]


def canonical(node: Any) -> str:
    """Return a tree as text: the same for every formatting of the same code, under every version of Python."""
    if isinstance(node, list):
        return "[" + ",".join(canonical(one) for one in node if not _is_text(one)) + "]"
    if not isinstance(node, ast.AST) or isinstance(node, ast.Constant):
        return repr(node.value if isinstance(node, ast.Constant) else node)
    kind = type(node).__name__
    if kind == "Index":
        # Up to Python 3.8 a subscript is wrapped, and several of them are not a tuple.
        return canonical(node.value)  # type: ignore[attr-defined]
    if kind == "ExtSlice":
        return f"Tuple(elts={canonical(node.dims)})"  # type: ignore[attr-defined]
    return f"{kind}({','.join(_fields(node))})"


def _fields(node: ast.AST) -> Iterator[str]:
    for name, value in ast.iter_fields(node):
        if name not in _IGNORED_FIELDS and value is not None and value != []:
            if isinstance(node, ast.JoinedStr):
                value = [one for one in value if isinstance(one, ast.FormattedValue)]
            yield f"{name}={canonical(value)}"


def _is_text(node: Any) -> bool:
    """Return a string that stands alone: a docstring, or code that somebody switched off."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
