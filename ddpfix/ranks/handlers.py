"""Whether a program may do something about an error that torch would raise where it stands.

A program that saves its work, or goes on with fewer ranks, when a collective gives up must come to that. Where the
source does not tell, it may.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import sys
from types import FrameType
from typing import Any, Iterator, List, Optional

from ddpfix.ranks.last_words import OWN, is_installed, is_users

# Context managers that swallow errors, by their names.
_SWALLOW = ("suppress", "raises", "ignore")


def may_handle(frame: Optional[FrameType]) -> bool:
    """Whether a frame of the program around this one may act upon a RuntimeError, or tidy up after it.

    Args:
        frame: the innermost one.
    """
    while frame is not None:
        if not _is_quiet(frame) and _acts(frame):
            return True
        frame = frame.f_back
    return False


def _is_quiet(frame: FrameType) -> bool:
    """Whether the code is torch's, Python's or ours, which raises on."""
    torch: Any = sys.modules.get("torch")
    file = frame.f_code.co_filename
    quiet = ["<frozen ", *OWN] + ([] if torch is None else [os.path.join(os.path.dirname(torch.__file__), "")])
    return file.startswith(tuple(quiet)) or not (is_users(file) or is_installed(file))


def _acts(frame: FrameType) -> bool:
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = "".join(linecache.getlines(file, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return True
    if not source.strip():
        return True
    return any(_handles(node, is_users(file)) for node in _around(tree, line))


def _around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """The statements with a block of their own that has this line."""
    for node in ast.walk(tree):
        body: List[Any] = getattr(node, "body", None) or []
        if isinstance(body, list) and body and body[0].lineno <= line <= (body[-1].end_lineno or 0):
            yield node


def _handles(node: ast.AST, own: bool) -> bool:
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return any(name in ast.dump(item.context_expr) for item in node.items for name in _SWALLOW)
    handlers: Optional[List[ast.ExceptHandler]] = getattr(node, "handlers", None)
    if handlers is None:
        return False
    # The user's own `finally` may save the model.
    return any(map(_catches, handlers)) or (own and bool(getattr(node, "finalbody", None)))


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_may_be(kind) for kind in kinds)


def _may_be(kind: Optional[ast.AST]) -> bool:
    """Whether an exception class, as it is written, may be one that a RuntimeError is an instance of."""
    found = getattr(builtins, kind.id, None) if isinstance(kind, ast.Name) else None
    return not isinstance(found, type) or issubclass(RuntimeError, found) or issubclass(found, RuntimeError)
