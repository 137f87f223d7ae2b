"""Reads the files of a package, from a folder or a wheel, and finds functions in them as an import would, without one.

By names, imports and base classes; nothing is written, imported or run.
"""

from __future__ import annotations

import ast
import warnings
import zipfile
from importlib.util import decode_source, resolve_name
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union


class ReleaseError(ValueError):
    """A release cannot be had, or what was asked for makes no sense; the message says which."""


class Unreadable(ValueError):
    """A module cannot be read or parsed; the message says why."""


class Tree:
    """A package: where each module is, by its dotted name, and what reads a file.

    Args:
        label: what it is called in messages, such as ``funasr 1.4.16``.
    """

    def __init__(self, package: str, label: str, paths: Mapping[str, str], read: Callable[[str], bytes]) -> None:
        if not paths:
            raise ReleaseError(f"{label} has no package {package}")
        self.package, self.label, self.paths = package, label, paths
        self._read = read
        self._sources: Dict[str, str] = {}

    def source(self, module: str) -> str:
        """The text of a module; raises Unreadable."""
        if module not in self._sources:
            try:
                self._sources[module] = decode_source(self._read(self.paths[module]))
            except (SyntaxError, UnicodeDecodeError, LookupError, OSError, zipfile.BadZipFile) as error:
                raise Unreadable(f"{module} cannot be read: {error}") from None
        return self._sources[module]


def of_folder(package: str, label: str, folder: Path, inside: str = ".") -> Tree:
    """A package in a folder: a checkout, an unpacked release, or with its name, ``inside`` of which only is read."""
    files = (str(path.relative_to(folder)) for path in (folder / inside).rglob("*.py") if path.is_file())
    return Tree(package, label, modules(package, files), lambda name: (folder / name).read_bytes())


def of_wheel(package: str, label: str, archive: zipfile.ZipFile) -> Tree:
    """A package in a wheel, which stays open as long as the tree is used; raises ReleaseError."""
    return Tree(package, label, modules(package, archive.namelist()), archive.read)


def modules(package: str, paths: Iterable[str]) -> Dict[str, str]:
    """The modules of a package by name, from the paths of files; the shallowest folder of that name counts."""
    found: Dict[Tuple[int, Tuple[str, ...]], Dict[str, str]] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        if path.endswith(".py") and package in parts[:-1]:
            place = parts.index(package)
            inside = (*parts[place:-1], parts[-1][:-3])
            name = ".".join(inside[:-1] if inside[-1] == "__init__" else inside)
            found.setdefault((place, parts[:place]), {})[name] = path
    return found[min(found)] if found else {}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Imported(NamedTuple):
    """What an import statement binds: a module, or a name in it."""

    module: str
    name: Optional[str]


Entry = Union[ast.AST, Imported]


class Scope(NamedTuple):
    """The names of a module or of a class, each with all that is bound to it, and the modules of ``import *``."""

    names: Dict[str, List[Entry]]
    stars: List[str]


class Found(NamedTuple):
    """A definition."""

    module: str  # where it is
    name: str  # its name there, such as ``Class.method``
    nodes: Tuple[ast.AST, ...]  # its statements; there are several where a condition chooses one

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    def parameters(self, bar: Optional[str] = None) -> Optional[List[str]]:
        """The names of its parameters, ``bar`` behind those with a position; None where it is no function."""
        node, between = self.nodes[-1], [bar] if bar else []
        if isinstance(node, ast.ClassDef):
            # A dataclass, whose __init__ is made of its fields.
            return ["self", *(each.target.id for each in node.body if _is_field(each)), *between]  # type: ignore[attr-defined]
        if not isinstance(node, _FUNCTIONS):
            return None
        named = [*getattr(node.args, "posonlyargs", []), *node.args.args]
        others = [*node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        return [*(each.arg for each in named), *between, *(each.arg for each in others if each is not None)]


_Thing = Union[Found, str]
# What is being looked up: an import may lead in a circle.
_Seen = Set[Tuple[str, str]]


class Code:
    """The definitions of a package, in the files of a tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._scopes: Dict[str, Scope] = {}
        self._trees: Dict[str, ast.Module] = {}

    def find(self, place: str) -> Optional[Found]:
        """The definition at ``module:name``; None where it is not, or is not this package's.

        Raises:
            Unreadable: a module on the way to it cannot be read.
        """
        module, _, path = place.partition(":")
        thing = self._path(module, path.split("."), set())
        return thing if isinstance(thing, Found) else None

    def module(self, name: str) -> Optional[ast.Module]:
        """The syntax tree of a module; None where it is not."""
        return self._tree(name) if name in self.tree.paths else None

    def _path(self, module: str, parts: List[str], seen: _Seen) -> Optional[_Thing]:
        thing = self._name(module, parts[0], seen)
        for part in parts[1:]:
            thing = None if thing is None else self._member(thing, part, seen)
        return thing

    def _name(self, module: str, name: str, seen: _Seen) -> Optional[_Thing]:
        """What a module calls so: a definition, or the name of a module."""
        if (module, name) in seen or module not in self.tree.paths:
            return None
        seen.add((module, name))
        scope = self._scope_of(module)
        entries = scope.names.get(name, ())
        if not entries:
            inside = f"{module}.{name}"
            if inside in self.tree.paths:
                return inside
            return next((thing for star in scope.stars for thing in [self._name(star, name, seen)] if thing), None)
        return self._bound(module, name, entries, seen)

    def _bound(self, module: str, name: str, entries: Sequence[Entry], seen: _Seen) -> Optional[_Thing]:
        last = entries[-1]
        if isinstance(last, Imported):
            if last.name is None:
                return last.module if last.module in self.tree.paths else None
            found = self._name(last.module, last.name, seen)
            inside = f"{last.module}.{last.name}"
            return found or (inside if inside in self.tree.paths else None)
        other = _dotted(last.value) if isinstance(last, (ast.Assign, ast.AnnAssign)) and last.value else None
        found = self._path(module, other, seen) if other else None
        nodes = tuple(node for node in entries if isinstance(node, ast.AST))
        return found or Found(module, name, nodes)

    def _member(self, thing: _Thing, name: str, seen: _Seen) -> Optional[_Thing]:
        if isinstance(thing, str):
            return self._name(thing, name, seen)
        node = thing.nodes[-1]
        if not isinstance(node, ast.ClassDef) or (str(thing), name) in seen:
            return None
        seen.add((str(thing), name))
        entries = self._scope_in(thing.module, node).names.get(name)
        if entries:
            return Found(thing.module, f"{thing.name}.{name}", tuple(e for e in entries if isinstance(e, ast.AST)))
        for base in map(_dotted, node.bases):
            owner = self._path(thing.module, base, set()) if base else None
            found = self._member(owner, name, seen) if isinstance(owner, Found) else None
            if found is not None:
                return found
        return thing if name == "__init__" and _is_dataclass(node) else None

    def _is_package(self, module: str) -> bool:
        return self.tree.paths[module].endswith("__init__.py")

    def _scope_in(self, module: str, owner: ast.ClassDef) -> Scope:
        key = f"{module}:{owner.name}:{owner.lineno}"
        if key not in self._scopes:
            self._scopes[key] = _scope(owner.body, module, self._is_package(module))
        return self._scopes[key]

    def _scope_of(self, module: str) -> Scope:
        if module not in self._scopes:
            self._scopes[module] = _scope(self._tree(module).body, module, self._is_package(module))
        return self._scopes[module]

    def _tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            source = self.tree.source(module)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._trees[module] = ast.parse(source)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Unreadable(f"{module} cannot be parsed by this Python: {error}") from None
        return self._trees[module]


def _is_dataclass(node: ast.ClassDef) -> bool:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return any((_dotted(each) or [""])[-1] == "dataclass" for each in called)


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _dotted(node: ast.AST) -> Optional[List[str]]:
    """The parts of a dotted name; None for any other expression."""
    parts: List[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def _scope(body: Sequence[ast.stmt], module: str, is_package: bool) -> Scope:
    """What the statements of a module or class bind, whichever way a condition takes."""
    scope = Scope({}, [])
    for node in _statements(body):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            scope.names.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    scope.names.setdefault(target.id, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            scope.names.setdefault(node.target.id, []).append(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                scope.names.setdefault(bound, []).append(Imported(alias.name if alias.asname else bound, None))
        elif isinstance(node, ast.ImportFrom):
            _bind(node, _origin(node, module, is_package), scope)
    return scope


def _bind(node: ast.ImportFrom, origin: str, scope: Scope) -> None:
    for alias in node.names:
        if alias.name == "*":
            scope.stars.append(origin)
        else:
            scope.names.setdefault(alias.asname or alias.name, []).append(Imported(origin, alias.name))


def _origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module that a statement imports from."""
    package = module if is_package else module.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, with those under conditions, and without those in functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)
