"""Tracebacks without ddpfix's frames: an error that passes a wrapper looks as it would without ddpfix.

A bare ``raise`` adds no frame from Python 3.11 on, so that the clause which calls :func:`hide` leaves none of its own.
Before, that one stays. With ``DDPFIX_LOG=debug`` all of them do.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import Optional

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
        links, trace = [], error.__traceback__
        while trace is not None:
            links.append(trace)
            trace = trace.tb_next
        kept = [each for each in links if not each.tb_frame.f_code.co_filename.startswith(OWN)]
        if links[-1] not in kept:
            # ddpfix raises it: with a text that says it, or as it hands on a call with arguments that do not fit.
            is_call = isinstance(error, TypeError) and attribution.is_named(links[-1].tb_frame.f_code)
            is_meant = type(error).__module__.partition(".")[0] in _NAMES or str(error).startswith("ddpfix")
            if not is_call and not is_meant:
                return
        for each, after in zip(kept, [*kept[1:], None]):
            each.tb_next = after
        error.__traceback__ = kept[0] if kept else None


def text(error: BaseException) -> str:
    """Return an error's traceback as Python prints it, without ddpfix's frames; the error stays as it is.

    Args:
        error: with its traceback, its causes, and the errors that were being handled when it was raised.
    """
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    each: Optional[traceback.TracebackException] = None if log.is_debug() else shown
    while each is not None:
        kept = [frame for frame in each.stack if not frame.filename.startswith(OWN)]
        # Of an unexpected error of ddpfix's own they say where it comes from.
        if kept and kept[-1] is each.stack[-1]:
            each.stack[:] = kept
        each = each.__cause__ or each.__context__
    return "".join(shown.format())
