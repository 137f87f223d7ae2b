"""The loops around the lines of a stack, by its code: they tell whether a rank is past the loop of another one.

A barrier, a save or an evaluation after a loop over data waits for the ranks that have more of them. One inside of the
loop, or in a later turn of a loop around it, is another matter.
"""

from __future__ import annotations

import ast
import linecache
from types import CodeType, FrameType
from typing import Iterator, List, Sequence, Tuple

from ddpfix.monitor import places
from ddpfix.rules.facts import Standing

# More functions than that of a program's own tell nothing more.
_MOST = 12
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def of(frames: Sequence[FrameType]) -> Tuple[Standing, ...]:
    """Return the functions of the program and of its packages on a stack, the outermost first."""
    own: List[Standing] = []
    for frame in frames:
        code = frame.f_code
        if not places.is_library(places.StackFrame(code.co_filename, frame.f_lineno, code.co_name)):
            loops = _around(frame) if len(own) < _MOST else ()
            own.append((code.co_filename, code.co_name, frame.f_lineno, loops))
    return tuple(own[:_MOST])


def _around(frame: FrameType) -> Tuple[Tuple[int, int], ...]:
    """Return the loops around the line that runs, as far as they are of the same function."""
    code, first, line = frame.f_code, frame.f_code.co_firstlineno, frame.f_lineno
    text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    try:
        whole = compile(text, code.co_filename, "exec", dont_inherit=True)
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    if not any(each.co_firstlineno == first and each.co_code == code.co_code for each in _below(whole)):
        # The file has been edited since the program began, or is not what runs.
        return ()
    found = (_span(node) for node in ast.walk(tree) if isinstance(node, _LOOPS))
    return tuple(sorted((start, end) for start, end in found if first <= start <= line <= end))


def _below(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module and of all that is defined in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _below(value)


def _span(node: ast.AST) -> Tuple[int, int]:
    body = getattr(node, "body", [])
    # What stands in the branch "else" of a loop runs after it.
    return int(getattr(node, "lineno", 0)), int(getattr(body[-1], "end_lineno", 0) or 0)
