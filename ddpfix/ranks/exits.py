"""``sys.exit(1)`` is a failure that leaves no traceback, so that each call is noted here.

Whether the exit was meant as the end is known when the program is over: a SystemExit may be caught, too.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import threading
import traceback
from typing import Any, Callable, List, NamedTuple, Optional

from ddpfix.ranks.last_words import OWN, follows, is_users, words


class Exit(NamedTuple):
    """The last call of ``sys.exit`` or ``exit`` with a code that is an error.

    Attributes:
        code: what it was called with.
        place: where, in words.
        handled: the error that was being handled, in one line; empty where there was none.
        trace: its traceback, or the stack of the call.
        follows: whether that error only says that another rank is gone.
    """

    code: Any
    place: str
    handled: str
    trace: str
    follows: bool


_LAST: List[Exit] = []
_UNDO: List[Callable[[], None]] = []


def last() -> Optional[Exit]:
    """The last call, if its code was that of a failure."""
    return _LAST[-1] if _LAST else None


def watch() -> None:
    """Note the calls from now on; once."""
    if _UNDO:
        return
    _replace(sys, "exit")
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__name__ == "Quitter":
        _replace(quitter, "__call__")


def forget() -> None:
    """Take it back, unless somebody has put his own over it."""
    while _UNDO:
        _UNDO.pop()()
    _LAST.clear()


def _replace(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        values = [*args[isinstance(owner, type) :], *kwargs.values()]
        note(values[0] if values else None)
        return original(*args, **kwargs)

    def undo() -> None:
        if vars(owner)[name] is noting:
            setattr(owner, name, original)

    setattr(owner, name, noting)
    _UNDO.append(undo)


def note(code: Any) -> None:
    """Note an exit; one without an error, or that only passes an earlier one on, changes what is known accordingly."""
    before = last()
    if threading.current_thread() is not threading.main_thread():
        # It ends that thread only.
        return
    if code is None or (isinstance(code, int) and not code):
        _LAST.clear()
    elif not (sys.exc_info()[1] is None and before is not None and before.handled and before.code == code):
        _LAST[:] = [_described(code)]


def _described(code: Any) -> Exit:
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
        return Exit(code, "", words(error), traceback.format_exc(), follows(error))
    frames = [each for each in traceback.extract_stack() if not each.filename.startswith(OWN)]
    own = [each for each in frames if is_users(each.filename)] or frames
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return Exit(code, place, "", "".join(traceback.format_list(frames)), False)
