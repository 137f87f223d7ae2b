"""Counts who observes a training step in patches/torch: ``python -m tests.support.events [CHECKOUT]``.

It reads the sources, so that it counts any checkout, also one of long ago.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

ROOT = Path(__file__).parents[2]
# Functions that put a wrapper on an attribute; its name is among their arguments.
_WRAPS = ("wrap", "wrap_hot", "replace")
Found = Iterator[ast.AST]


def _calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in names:
                yield node


def wraps(*attributes: str) -> Callable[[ast.AST], Found]:
    """Calls that wrap one of these attributes."""
    return lambda tree: (
        call
        for call in _calls(tree, *_WRAPS)
        if any(isinstance(each, ast.Constant) and each.value in attributes for each in call.args[1:2])
    )


def calls(*names: str) -> Callable[[ast.AST], Found]:
    """Calls of these functions."""
    return lambda tree: _calls(tree, *names)


def _at_exit(tree: ast.AST) -> Found:
    return (
        call
        for call in _calls(tree, "register")
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "atexit"
    )


def _training(tree: ast.AST) -> Found:
    """Reads of whether a wrapper, or the module in it, is in training mode."""
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
    of_wrapper = ("wrapper", "'module'", "inner")
    return (node for node in read if node.attr == "training" and any(word in ast.dump(node) for word in of_wrapper))


EVENTS: Dict[str, Callable[[ast.AST], Found]] = {
    "wraps DDP's constructor or forward": wraps("__init__", "forward", "register_comm_hook"),
    "follows a model's forwards (`attach`)": calls("attach"),
    "puts hooks on outputs or parameters": calls("register_prehook", "register_hook", "put_on_node"),
    "wraps `torch.autograd.backward`": wraps("backward"),
    "wraps reentrant checkpoints": wraps("apply"),
    "registers hooks at optimizer steps": calls(
        "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"
    ),
    "wraps a loader's iterator": wraps("__next__", "_reset"),
    "wraps `init_process_group` or `destroy_process_group`": wraps("init_process_group", "destroy_process_group"),
    "registers a handler at the exit": _at_exit,
    "asks whether a model trains": _training,
}


def trees(checkout: Path) -> List[Tuple[str, ast.AST]]:
    """The files that are counted: patches/torch, and what its features keep in ddpfix/ranks."""
    paths = sorted([*checkout.glob("patches/torch/**/*.py"), *checkout.glob("ddpfix/ranks/**/*.py")])
    return [(str(path.relative_to(checkout)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def counted(checkout: Path = ROOT) -> Dict[str, Tuple[int, int]]:
    """By event: how many places there are, and in how many files."""
    found: Dict[str, Tuple[int, int]] = {}
    sources = trees(checkout)
    for event, of in EVENTS.items():
        places = [(name, node) for name, tree in sources for node in of(tree)]
        found[event] = len(places), len({name for name, _ in places})
    return found


# The same on 0b3e25e, before the house was built: python -m tests.support.events CHECKOUT.
BEFORE = (7, 5), (13, 12), (10, 9), (2, 2), (1, 1), (6, 4), (5, 3), (6, 5), (5, 5), (10, 10)


def table() -> str:
    """The counts of before and now, for docs/dev/architecture.md."""
    lines = ["| what | before: places (files) | now |", "|---|---|---|"]
    for (event, (places, files)), (earlier, others) in zip(counted().items(), BEFORE):
        lines.append(f"| {event} | {earlier} ({others}) | {places} ({files}) |")
    return "\n".join(lines)


def main() -> None:
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for event, (places, files) in counted(checkout).items():
        print(f"{event:58} {places:3} places in {files:2} files")


if __name__ == "__main__":
    main()
