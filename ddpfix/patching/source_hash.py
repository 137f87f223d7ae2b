"""A short hash of a method's source, by which we recognise code that we have examined.

The hash is of the syntax tree without docstrings, annotations and line numbers, so that formatting and comments do not
count, and it is the same under every version of Python. All methods of the class that the first one may call count, so
a subclass that overrides one of them has another hash.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import textwrap
from functools import lru_cache, reduce
from types import FunctionType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional

from ddpfix.user_code import module_of

# Fields that do not change what the code does, or are not there in every version of Python.
_IGNORED_FIELDS = frozenset(("annotation", "returns", "ctx", "kind", "type_comment", "type_params", "type_ignores"))
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def of_forward(module: Any) -> Optional[str]:
    """Return the hash of what a module's forward does; None if a source is missing, or the instance has methods."""
    owner = type(module)
    if any(callable(value) and hasattr(owner, name) for name, value in vars(module).items()):
        return None
    try:
        return digest("forward", lambda name: _parsed(_method(owner, name)))
    except (OSError, TypeError, SyntaxError, StopIteration):
        return None


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


def digest(first: str, find: Callable[[str], Optional[ast.AST]]) -> str:
    """Return the hash of a method and of those that it may call; ``find(name)`` gives a method's tree, or None."""
    found: Dict[str, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        tree = None if name in found else find(name)
        if tree is not None:
            found[name] = canonical(tree)
            waiting.extend(sorted({node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}))
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:12]


def _method(owner: type, name: str) -> Optional[FunctionType]:
    """Return the function behind a name of the class; methods that torch gives every module do not count."""
    for level in owner.__mro__:
        if name in vars(level):
            found = vars(level)[name]
            found = found.__func__ if type(found) in (staticmethod, classmethod) else found
            torch_own = module_of(level).split(".")[0] == "torch"
            # A proxy around a function is not the function: left out, it makes another hash.
            return found if type(found) is FunctionType and not torch_own else None
    return None


def _parsed(function: Optional[FunctionType]) -> Optional[ast.AST]:
    if function is None:
        return None
    # By the code object: a wrapper must not count as the function that it wraps.
    source = inspect.getsource(function.__code__)
    # A docstring may be indented less than its function, so the text cannot be moved to the left.
    tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return next(node for node in ast.walk(tree) if isinstance(node, functions))


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
