"""Reads the syntax tree of a function, proves that the tree is what runs, and compiles a changed one in its place.

The tree is compiled unchanged first: where its code is not the function's own (a macro, an assertion that pytest has
rewritten, a file that was edited since), nothing is known about the function.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import textwrap
from types import CellType, CodeType, FunctionType
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ddpfix.patching.site import PatchError

# Whether a function is nested says nothing about what it does; the flag is that of an old future statement as well.
_NESTED = inspect.CO_NESTED
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}) & ~_NESTED


def tree_of(function: FunctionType) -> ast.FunctionDef:
    """Return the definition of a function, with its own line numbers; PatchError where that is not what runs."""
    tree = definition(_text(function), function.__code__.co_firstlineno)
    try:
        if not any(_same(_compiled(function, tree, (), names), function.__code__) for names in _imports(function)):
            raise PatchError(f"the source of {function.__qualname__} differs from the code that runs")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise PatchError(f"the source of {function.__qualname__} cannot be compiled by itself: {error}") from error
    return tree


def definition(text: str, line: int) -> ast.FunctionDef:
    """Parse a function's definition, indented or not, whose first line is number ``line``; PatchError: it is none."""
    indented = text[:1].isspace()
    try:
        module = ast.parse("if 1:\n" + text if indented else text)
    except SyntaxError as error:
        raise PatchError(f"its source cannot be parsed: {error}") from error
    first: Any = module.body[0]
    tree = first.body[0] if indented else first
    if not isinstance(tree, ast.FunctionDef):
        raise PatchError("its source is not a function definition")
    ast.increment_lineno(tree, line - 1 - indented)
    return tree


def changed(function: FunctionType, tree: ast.FunctionDef, values: Mapping[str, Any]) -> FunctionType:
    """Return a copy of a function that runs a changed tree, in which ``values`` are used as free variables."""
    code: Any = _compiled(function, tree, tuple(values), ())
    cells: Dict[str, CellType] = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    cells.update({name: CellType(value) for name, value in values.items()})
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=function.__qualname__)
    return copy_with(function, code, tuple(cells[name] for name in code.co_freevars))


def copy_with(function: FunctionType, code: CodeType, closure: Any) -> FunctionType:
    """Return a function with the name, defaults and globals of another one."""
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return copy


def _text(function: FunctionType) -> str:
    try:
        lines, _ = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise PatchError(f"the source of {function.__qualname__} is unavailable") from error
    return "".join(lines)


def _imports(function: FunctionType) -> Iterator[Iterable[str]]:
    """Yield guesses of what the function's file imports: CPython 3.11 compiles ``module.call()`` differently."""
    yield ()
    try:
        module = ast.parse("".join(linecache.getlines(function.__code__.co_filename, function.__globals__)))
    except (SyntaxError, ValueError, RecursionError):
        return
    found = (node for node in _outside(module) if isinstance(node, (ast.Import, ast.ImportFrom)))
    aliases = (alias for node in found for alias in node.names if alias.name != "*")
    yield dict.fromkeys((alias.asname or alias.name).partition(".")[0] for alias in aliases)


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that belong to no function or class."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _outside(child)


def _compiled(function: FunctionType, tree: ast.FunctionDef, names: Sequence[str], imports: Iterable[str]) -> CodeType:
    """Compile a definition where it stands: in its class, and in a function that has its free variables."""
    code = function.__code__
    owner = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    text, inner = "0\n", "0\n"
    if owner and owner != "<locals>":
        text = inner = f"class {owner}:\n 0\n"
    free = [name for name in (*code.co_freevars, *names) if name != "__class__"]
    if free:
        text = f"def around({', '.join(free)}):\n" + textwrap.indent(inner, " ")
    module: Any = ast.parse(text)
    place = module
    while not isinstance(place.body[0], ast.Expr):
        place = place.body[0]
    place.body = [tree]
    module.body += [ast.parse(f"import {name}").body[0] for name in imports]
    made = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    for found in _below(made):
        if found.co_name == code.co_name and found.co_firstlineno == code.co_firstlineno:
            return found
    raise ValueError("its code was not found")


def _below(code: CodeType) -> Iterator[CodeType]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield value
            yield from _below(value)


def _same(one: CodeType, other: CodeType) -> bool:
    return _facts(one) == _facts(other)


def _facts(code: CodeType) -> Tuple[Any, ...]:
    """Return the traits that code objects with the same effect share; constants are compared by their types as well."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags & ~_NESTED)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    constants = [_facts(value) if isinstance(value, CodeType) else _typed(value) for value in code.co_consts]
    return (code.co_code, getattr(code, "co_exceptiontable", b""), names, counts, constants)


def _typed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_typed(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return type(value), repr(value)


# What the syntax tells by itself: names, what is assigned to them, constants, shapes.


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the global names and attributes in a function's code, and in that of its comprehensions."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from names_of(value)


def names_in(target: ast.AST) -> FrozenSet[str]:
    """Return the names in a node."""
    return frozenset(node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def index_of(node: ast.Subscript) -> Any:
    """Return what a subscript is indexed by; Python 3.8 has a node around it."""
    index: Any = node.slice
    return index.value if type(index).__name__ == "Index" else index


def stored(node: Any, parents: Dict[ast.AST, ast.AST]) -> Iterator[Tuple[str, Optional[ast.expr]]]:
    """Yield the names that a node gives a value, and the expression whose value it is, if it is one."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, assigned(parents, node)
    elif isinstance(node, ast.arg):
        yield node.arg, None
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
        yield node.name, None
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield (alias.asname or alias.name).partition(".")[0], None


def assigned(parents: Dict[ast.AST, ast.AST], name: ast.Name) -> Optional[ast.expr]:
    """Return the expression whose value a name gets as a whole; that of ``a, b = 1, 2`` for ``b`` is ``2``."""
    parent = parents[name]
    if isinstance(parent, ast.Tuple):
        around = parents[parent]
        value = around.value if isinstance(around, ast.Assign) and parent in around.targets else None
        known = isinstance(value, ast.Tuple) and len(value.elts) == len(parent.elts)
        starred = known and any(isinstance(each, ast.Starred) for each in (*parent.elts, *value.elts))  # type: ignore
        return value.elts[parent.elts.index(name)] if known and not starred else None  # type: ignore[union-attr]
    if isinstance(parent, ast.Assign) and name in parent.targets:
        return parent.value
    if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
        return parent.value
    return None


def constant(node: ast.AST) -> Optional[float]:
    """Return the value of a numeric constant, with a sign or not."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_none(node: Optional[ast.AST]) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def shape_of(sizes: List[ast.expr]) -> Optional[str]:
    """Return the shape of a draw: a single number, a vector, or None for anything else (noise, a mask)."""
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = list(sizes[0].elts)
    if all(constant(size) == 1 or is_none(size) for size in sizes):
        return "number"
    return "vector" if len(sizes) == 1 else None
