"""Tracebacks without ddpfix's frames: an error that passes a wrapper looks as it would without ddpfix.

A bare ``raise`` adds no frame from Python 3.11 on, so that the clause which calls :func:`hide` leaves none of its own.
Before, that one stays. With ``DDPFIX_LOG=debug`` all of them do.
"""

from __future__ import annotations

import contextlib
import traceback
from types import FrameType, TracebackType
from typing import Iterator, List, Optional

from ddpfix import log
from ddpfix.patching import attribution
from ddpfix.user_code import OWN

_NAMES = ("ddpfix", "patches")


def hide(error: BaseException) -> None:
    """Take ddpfix's frames out of an error's traceback; to be called in an ``except`` clause that ends with ``raise``.

    An unexpected error of ddpfix's own keeps them: they say where it comes from.

    Args:
        error: the one that is being handled.
    """
    if log.is_debug():
        return
    with contextlib.suppress(Exception):
        links = _links(error.__traceback__)
        if not links or (_is_ours(links[-1].tb_frame) and not _is_meant(error, links[-1].tb_frame)):
            return
        kept = [each for each in links if not _is_ours(each.tb_frame)]
        for each, after in zip(kept, [*kept[1:], None]):
            each.tb_next = after
        error.__traceback__ = kept[0] if kept else None


def _links(trace: Optional[TracebackType]) -> List[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN)


def _is_meant(error: BaseException, frame: FrameType) -> bool:
    """Return whether ddpfix raises this error on purpose, with a text that says it, or hands on a call that is one."""
    if isinstance(error, TypeError) and attribution.is_between(frame):
        # The arguments are not those of what is called.
        return True
    return type(error).__module__.partition(".")[0] in _NAMES or str(error).startswith("ddpfix")


def text(error: BaseException) -> str:
    """Return an error's traceback as Python prints it, without ddpfix's frames; the error stays as it is.

    Args:
        error: with its traceback, its causes, and the errors that were being handled when it was raised.
    """
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    if not log.is_debug():
        for each in _chain(shown):
            kept = [frame for frame in each.stack if not frame.filename.startswith(OWN)]
            # Of an unexpected error of ddpfix's own they say where it comes from.
            if kept and kept[-1] is each.stack[-1]:
                each.stack[:] = kept
    return "".join(shown.format())


def _chain(shown: Optional[traceback.TracebackException]) -> Iterator[traceback.TracebackException]:
    while shown is not None:
        yield shown
        shown = shown.__cause__ or shown.__context__
