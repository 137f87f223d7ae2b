"""Names of modules that hold what functions change: found in the syntax trees of ddpfix and its patches."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from tests.support.rooms import FILES

# Constructors of what can be changed, our own among them. The others (a lock, a ContextVar, a logger) hold nothing, or
# for a block only.
_MAKERS = {
    "ByIdentity",
    "Changes",
    "Counter",
    "Engine",
    "Kept",
    "Noted",
    "OrderedDict",
    "Registry",
    "Shared",
    "Trained",
    "WeakKeyDictionary",
    "WeakSet",
    "WeakValueDictionary",
    "count",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "local",
    "set",
}
# There is no other use of these than to be changed.
_FOR_CHANGES = _MAKERS - {"dict", "list", "set"}
_CHANGES = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "setdefault",
    "sort",
    "update",
}
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


class Name(NamedTuple):
    """A name at the level of a module, and what it is bound to."""

    module: str
    name: str
    value: Optional[ast.expr]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def found() -> List[str]:
    """The registries of all modules, as ``ddpfix.log.NOTED``: bound at module level, and changed by functions."""
    trees = {name.replace(".__init__", ""): ast.parse(Path(path).read_text("utf-8")) for name, path in FILES.items()}
    names = [name for module, tree in trees.items() for name in _bound(module, tree)]
    changed = {name for module, tree in trees.items() for name in _changed(module, tree)}
    return sorted({str(name) for name in names if str(name) in changed or _is_for_changes(name.value)})


def of_tree(text: str) -> List[str]:
    """The registries of one module, for the tests of this file."""
    tree = ast.parse(text)
    changed = set(_changed("m", tree))
    return [str(name) for name in _bound("m", tree) if str(name) in changed or _is_for_changes(name.value)]


def _bound(module: str, tree: ast.Module) -> Iterator[Name]:
    """The names that may be registries."""
    rebound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for statement in _top_level(tree.body):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            value = getattr(statement, "value", None)
            # Python's own names (__all__, __path__) are none.
            if not isinstance(target, ast.Name) or target.id.startswith("__"):
                continue
            if target.id in rebound or _is_mutable(value):
                yield Name(module, target.id, value)


def _top_level(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _top_level(statement.body)
            yield from _top_level(getattr(statement, "orelse", []))


def _is_mutable(value: Optional[ast.expr]) -> bool:
    return isinstance(value, _DISPLAYS) or _maker(value) in _MAKERS


def _is_for_changes(value: Optional[ast.expr]) -> bool:
    """Whether there is no other use of this than to be changed: what is empty now is to be filled."""
    if isinstance(value, ast.Call):
        return _maker(value) in _FOR_CHANGES or (_maker(value) in _MAKERS and not value.args and not value.keywords)
    if isinstance(value, ast.List):
        # A list of one constant is a variable.
        return not value.elts or (len(value.elts) == 1 and isinstance(value.elts[0], ast.Constant))
    return isinstance(value, ast.Dict) and not value.keys


def _maker(value: Optional[ast.expr]) -> str:
    """The name of what is called here: of a function or a class."""
    if not isinstance(value, ast.Call):
        return ""
    called = value.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _changed(module: str, tree: ast.Module) -> Iterator[str]:
    """The names, of this or of other modules, that code in functions of a module changes or rebinds."""
    homes = _homes(module, tree)
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for node in ast.walk(function):
                for changed in _changed_by(node):
                    yield from _named(changed, module, homes)
                if isinstance(node, ast.Global):
                    yield from (f"{module}.{name}" for name in node.names)


def _changed_by(node: ast.AST) -> Iterator[ast.AST]:
    """What a node changes."""
    if isinstance(node, ast.Attribute) and node.attr in _CHANGES:
        # Also where it is only handed on: site.at_undo(REGISTRY.clear).
        yield node.value
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield node.value
    elif isinstance(node, ast.Call) and _maker(node) in ("register", "next") and node.args:
        yield node.args[0]


def _named(node: ast.AST, module: str, homes: Dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield homes.get(node.id, f"{module}.{node.id}")
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{homes.get(node.value.id, node.value.id)}.{node.attr}"


def _homes(module: str, tree: ast.Module) -> Dict[str, str]:
    """The dotted names of what a module imports, by the names that it has there."""
    found: Dict[str, str] = {}
    packages: Set[str] = {name for name in FILES if name.endswith(".__init__")}
    package = module if f"{module}.__init__" in packages else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            home = ".".join(part for part in (above, node.module) if part)
            found.update((alias.asname or alias.name, f"{home}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update((alias.asname, alias.name) for alias in node.names if alias.asname)
    return found
