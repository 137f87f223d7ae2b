"""The modules of ddpfix and what they import, read from their sources."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

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


def imported(name: str, path: Path) -> Iterator[str]:
    """The modules that a file imports when it runs, at its top or inside of functions."""
    package = name.rpartition(".")[0]
    for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                yield inside if inside in FILES or f"{inside}.__init__" in FILES else base


IMPORTS: Dict[str, List[str]] = {name: list(imported(name, path)) for name, path in FILES.items()}


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
    hidden = ("__init__", "__main__", "auto")
    shown = sorted(pair for pair in arrows if not set(pair) & set(hidden))
    return "\n".join(["```mermaid", "graph TD", *(f"    {one} --> {other}" for one, other in shown), "```"])
