"""The modules of ddpfix and what they import, read from their sources."""

from __future__ import annotations

import ast
from importlib.util import resolve_name
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Set, Tuple

ROOT = Path(__file__).parents[2]


def modules() -> Iterator[Tuple[str, Path]]:
    for path in sorted((ROOT / "ddpfix").rglob("*.py")):
        parts = path.relative_to(ROOT / "ddpfix").with_suffix("").parts
        if parts[0] != "_site" and "script" not in parts:
            yield ".".join(("ddpfix", *parts)), path
    for path in sorted((ROOT / "patches").rglob("*.py")):
        yield ".".join(("ddpfix", "patches", *path.relative_to(ROOT / "patches").with_suffix("").parts)), path


FILES = dict(modules())


def at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except the ones for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from at_run_time(node)


def imported(name: str, path: Path, nodes: Callable[[ast.AST], Iterable[ast.AST]] = at_run_time) -> Iterator[str]:
    """The modules that a file imports, at its top or inside of functions: by default those that run (not for types)."""
    package = name.rpartition(".")[0]
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                yield inside if inside in FILES or f"{inside}.__init__" in FILES else base


IMPORTS: Dict[str, List[str]] = {name: list(imported(name, path)) for name, path in FILES.items()}


# The rooms of patches/torch from the lowest floor up; those of one floor do not know each other.
FLOORS: Tuple[Tuple[str, ...], ...] = (
    ("internals",),
    ("pipeline",),
    ("agreement", "data", "forwards", "jobs"),
    ("unused", "sharded"),
    ("diagnosis", "tracing", "replicas", "probe"),
)
INSIDE = "ddpfix.patches.torch."


def inner(name: str) -> str:
    """The room of a module of patches/torch; "" for any other."""
    return name[len(INSIDE) :].split(".")[0] if name.startswith(INSIDE) and not name.endswith("__init__") else ""


def floor(name: str) -> int:
    """The floor of such a room, from 0."""
    return next(number for number, names in enumerate(FLOORS) if name in names)


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def ours(name: str) -> List[str]:
    return [other for other in IMPORTS[name] if other.split(".")[0] == "ddpfix"]


def picture() -> str:
    """The rooms as a diagram (mermaid); an arrow means that one imports the other."""
    arrows: Set[Tuple[str, str]] = set()
    for name in FILES:
        for other in ours(name):
            if other != "ddpfix" and room(other) != room(name):
                arrows.add((room(name), room(other)))
    return diagram(pair for pair in arrows if not set(pair) & {"__init__", "__main__", "auto"})


def diagram(arrows: Iterable[Tuple[str, str]]) -> str:
    return "\n".join(["```mermaid", "graph TD", *(f"    {one} --> {other}" for one, other in sorted(arrows)), "```"])


# Attributes with an underscore that are public all the same, or Python's own.
_PUBLIC = {"_replace", "_getframe", "_exit", "_current_frames"}


def private_names(path: Path) -> List[str]:
    """The private names of torch in a file: attributes with an underscore that the file does not define itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names = [node.attr for node in attributes]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            names += [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and type(arg.value) is str]
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    return sorted(set(private) - own - _PUBLIC)


def inner_picture() -> str:
    """The rooms of patches/torch as a diagram (mermaid)."""
    arrows: Set[Tuple[str, str]] = set()
    for name, path in FILES.items():
        for other in imported(name, path, ast.walk) if inner(name) else ():
            if inner(other) and inner(other) != inner(name):
                arrows.add((inner(name), inner(other)))
    return diagram(arrows)
