"""``sys.exit(1)`` is a failure that leaves no traceback, so that each call is described here.

A SystemExit may be caught. That it has ended the program is proved when it is freed, which a mark of ours in it sees:
CPython drops a SystemExit that nobody has caught when no Python frame of the main thread is left, before the functions
of atexit run; and no frame that it has passed has run another instruction, so that it is not the context of a later
exception.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import traceback
from types import BuiltinFunctionType, FrameType
from typing import Any, Dict, List, NamedTuple, Optional

from ddpfix.monitor.last_words import follows, words
from ddpfix.user_code import OWN, is_users


class Exit(NamedTuple):
    """A call of ``sys.exit`` with a code that is an error.

    Attributes:
        handled: the error that was being handled, in one line; empty where there was none.
        trace: its traceback, or the stack of the call.
        follows: whether that error only says that another rank is gone.
    """

    code: Any
    place: str
    handled: str
    trace: str
    follows: bool


def last() -> Optional[Exit]:
    """Return the call that has ended the program; None where none with an error is proved to have done so."""
    return next((each.proved for each in _WATCHES), None)


class _Mark(Dict[str, Any]):
    """The empty attributes of one SystemExit, which live as long as it does."""

    __slots__ = ("_exit", "_thread", "_stack")

    def __init__(self, exit: Exit, caller: FrameType) -> None:
        self._exit, self._thread = exit, threading.get_ident()
        # The frames from the caller of sys.exit on, with the instruction of each.
        self._stack = [(frame, frame.f_lasti) for frame, _ in traceback.walk_stack(caller)]

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def __del__(self) -> None:
        try:
            catcher: Optional[FrameType] = sys._getframe(1)
        except ValueError:
            catcher = None
        if threading.get_ident() == self._thread and (catcher is None or _ends_a_worker(catcher)):
            passed = itertools.takewhile(lambda each: each[0] is not catcher, self._stack)
            if all(frame.f_lasti == at for frame, at in passed):
                for watch in _WATCHES:
                    watch.proved = watch.proved or self._exit


def _ends_a_worker(frame: FrameType) -> bool:
    """Return whether multiprocessing catches it, at the end of a process, which then ends with its code."""
    return frame.f_code.co_name == "_bootstrap" and frame.f_globals.get("__name__") == "multiprocessing.process"


def has_left(error: SystemExit) -> None:
    """Note that an exit has left every frame inside the function that has caught it, and that raises it again.

    A library that exits inside ``try`` and ``finally`` (hydra) runs instructions on its way out.
    """
    mark, caller = error.__dict__, sys._getframe(1).f_back
    if type(mark) is _Mark:
        mark._stack = list(itertools.dropwhile(lambda each: each[0] is not caller, mark._stack))


class _Described:
    """Stands in for ``sys.exit``, and looks like the built-in function; no class binds it."""

    __slots__ = ("__weakref__", "_original")

    def __init__(self, original: Any) -> None:
        object.__setattr__(self, "_original", original)

    def __getattribute__(self, name: str) -> Any:
        return getattr(_original(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return _original(self)(*args, **kwargs)
        except BaseException as error:
            if type(error) is SystemExit and any(watch.stand_in is self for watch in _WATCHES):
                _mark(error, sys._getframe(1))
            # From Python 3.11 on a bare ``raise`` does not add the line of this frame again.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise

    def __repr__(self) -> str:
        return repr(_original(self))

    def __eq__(self, other: object) -> bool:
        return other is self or other is _original(self)

    def __hash__(self) -> int:
        return hash(_original(self))


def _original(stand_in: _Described) -> Any:
    return object.__getattribute__(stand_in, "_original")


class _Watch:
    """What stands in ``sys.exit``, and the call that has ended the program."""

    def __init__(self, stand_in: _Described) -> None:
        self.stand_in = stand_in
        self.proved: Optional[Exit] = None


# One at most.
_WATCHES: List[_Watch] = []


def watch() -> None:
    """Describe the calls from now on; once. A function of the program's own is left alone."""
    if not _WATCHES and type(sys.exit) is BuiltinFunctionType:
        stand_in = _Described(sys.exit)
        _WATCHES.append(_Watch(stand_in))
        sys.exit = stand_in


def forget() -> None:
    """Take it back, unless somebody has put his own over it."""
    while _WATCHES:
        ours = _WATCHES.pop().stand_in
        if sys.exit is ours:
            sys.exit = _original(ours)


def _mark(error: SystemExit, caller: FrameType) -> None:
    """Mark an exit with an error from the main thread; any other one ends a thread, or is no failure."""
    is_well = error.code is None or (isinstance(error.code, int) and not error.code)
    # One that the program made itself may have attributes.
    if not (is_well or vars(error)) and threading.get_ident() == threading.main_thread().ident:
        with contextlib.suppress(Exception):
            error.__dict__ = _Mark(_described(error.code, error.__context__), caller)


def _described(code: Any, error: Optional[BaseException]) -> Exit:
    if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return Exit(code, "", words(error), trace, follows(error))
    frames = [each for each in traceback.extract_stack() if not each.filename.startswith(OWN)]
    own = [each for each in frames if is_users(each.filename)] or frames
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return Exit(code, place, "", "".join(traceback.format_list(frames)), False)
