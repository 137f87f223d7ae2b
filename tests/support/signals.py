"""The reaction of a child process to Ctrl-C, whatever that of the process that runs the tests is."""

from __future__ import annotations

import signal

FOREGROUND = ("SIGINT", "SIGQUIT")


def foreground() -> None:
    """For ``preexec_fn``: the child reacts to the keyboard's signals as a program in the foreground does.

    A shell without job control starts its background jobs (CI's, and any under nohup) with these signals ignored, and
    what is ignored stays so in every child.
    """
    for name in FOREGROUND:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def background() -> None:
    """For ``preexec_fn``: the child ignores the keyboard's signals, as a background job does."""
    for name in FOREGROUND:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
