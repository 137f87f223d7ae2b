"""``sys.exit(1)`` is a failure that leaves no traceback, so that each call is described here.

A SystemExit may be caught. That it has ended the program is proved when it is freed, which a mark of ours in its
traceback sees: CPython drops a SystemExit that nobody has caught when no Python frame of the main thread is left,
before the functions of atexit run; and no frame that it has passed has run another instruction, so that it is not the
context of a later exception.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import traceback
from types import FrameType
from typing import Any, Callable, List, NamedTuple, Optional

from ddpfix.ranks.failures.last_words import follows, words
from ddpfix.user_code import OWN, is_users


class Exit(NamedTuple):
    """A call of ``sys.exit`` with a code that is an error.

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


_PROVED: List[Exit] = []
_UNDO: List[Callable[[], None]] = []


def last() -> Optional[Exit]:
    """Return the call that has ended the program; None where none with an error is proved to have done so."""
    return _PROVED[0] if _PROVED else None


class _Mark:
    """Lives as long as the traceback of one SystemExit.

    Args:
        exit: the call that has raised it.
    """

    def __init__(self, exit: Exit) -> None:
        self._exit, self._thread = exit, threading.get_ident()
        # The frames from the caller of sys.exit on, with the instruction of each.
        self._stack = [(frame, frame.f_lasti) for frame, _ in traceback.walk_stack(sys._getframe(3))]

    def __del__(self) -> None:
        try:
            catcher: Optional[FrameType] = sys._getframe(1)
        except ValueError:
            catcher = None
        if threading.get_ident() == self._thread and (catcher is None or _ends_a_worker(catcher)):
            passed = itertools.takewhile(lambda each: each[0] is not catcher, self._stack)
            if all(frame.f_lasti == at for frame, at in passed):
                _PROVED.append(self._exit)


def _ends_a_worker(frame: FrameType) -> bool:
    """Return whether multiprocessing catches it, at the end of a process, which then ends with its code."""
    return frame.f_code.co_name == "_bootstrap" and frame.f_globals.get("__name__") == "multiprocessing.process"


def watch() -> None:
    """Describe the calls from now on; once."""
    if _UNDO:
        return
    original = sys.exit

    @functools.wraps(original)
    def leave(*args: Any, **kwargs: Any) -> Any:
        mark = _mark(args[0] if args else None)  # noqa: F841
        return original(*args, **kwargs)

    # Names of this module mean nothing to whoever asks sys.exit for its types.
    leave.__annotations__ = {}

    def undo() -> None:
        if sys.exit is leave:
            sys.exit = original

    sys.exit = leave
    _UNDO.append(undo)


def forget() -> None:
    """Take it back, unless somebody has put his own over it."""
    while _UNDO:
        _UNDO.pop()()
    _PROVED.clear()


def _mark(code: Any) -> Optional[_Mark]:
    """Return a mark for an exit with an error from the main thread; any other one ends a thread, or is no failure."""
    is_well = code is None or (isinstance(code, int) and not code)
    if is_well or threading.get_ident() != threading.main_thread().ident:
        return None
    with contextlib.suppress(Exception):
        return _Mark(_described(code))
    return None


def _described(code: Any) -> Exit:
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
        return Exit(code, "", words(error), traceback.format_exc(), follows(error))
    frames = [each for each in traceback.extract_stack() if not each.filename.startswith(OWN)]
    own = [each for each in frames if is_users(each.filename)] or frames
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return Exit(code, place, "", "".join(traceback.format_list(frames)), False)
