"""Names of modules that hold what functions change: found in the syntax trees of ddpfix and its patches."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator, List

from tests.support.rooms import FILES

# Constructors of what is only there to be changed, our own among them. The others (a lock, a ContextVar, a logger)
# hold nothing, or for a block only.
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
}
_MAKERS |= {"WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "count", "defaultdict", "deque", "local"}
_CHANGES = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"}
_CHANGES |= {"remove", "setdefault", "sort", "update"}
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def found() -> List[str]:
    """The registries of all modules, as ``ddpfix.log.NOTED``: bound at module level, and there to be changed."""
    return sorted(
        f"{module.replace('.__init__', '')}.{name}"
        for module, path in FILES.items()
        for name in of_tree(Path(path).read_text("utf-8"))
    )


def of_tree(text: str) -> List[str]:
    """The registries of one module."""
    tree = ast.parse(text)
    rebound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    functions = (
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    )
    changed = {name for function in functions for node in ast.walk(function) for name in _changed_by(node)}
    names = []
    for statement in _top_level(tree.body):
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        for target in targets if isinstance(statement, (ast.Assign, ast.AnnAssign)) else ():
            # Python's own names (__all__, __path__) are none.
            if isinstance(target, ast.Name) and not target.id.startswith("__"):
                is_changed = target.id in changed and isinstance(value, _DISPLAYS)
                if target.id in rebound or is_changed or _is_for_changes(value):
                    names.append(target.id)
    return names


def _top_level(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _top_level([*statement.body, *getattr(statement, "orelse", [])])


def _is_for_changes(value: object) -> bool:
    """Whether there is no other use of this than to be changed: what is empty now is to be filled."""
    if isinstance(value, ast.Call):
        maker = getattr(value.func, "attr", getattr(value.func, "id", ""))
        return maker in _MAKERS or (maker in ("dict", "list", "set") and not value.args and not value.keywords)
    if isinstance(value, ast.List):
        # A list of one constant is a variable.
        return not value.elts or (len(value.elts) == 1 and isinstance(value.elts[0], ast.Constant))
    return isinstance(value, ast.Dict) and not value.keys


def _changed_by(node: ast.AST) -> Iterator[str]:
    """The names that a node changes."""
    changed: object = None
    if isinstance(node, ast.Attribute) and node.attr in _CHANGES:
        # Also where it is only handed on: site.at_undo(REGISTRY.clear).
        changed = node.value
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        changed = node.value
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register" and node.args:
        changed = node.args[0]
    if isinstance(changed, ast.Name):
        yield changed.id
