"""Switches ddpfix on from the environment. ``ddpfix.pth`` imports this in every interpreter that has DDPFIX set.

It runs at the start of every process, so it imports nothing but the standard library's smallest parts and leaves a
finder behind; the engine is loaded when the first watched toolkit is imported.
"""

from __future__ import annotations

import os
import sys

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def switch(value: str) -> bool:
    """Whether a value of ``DDPFIX`` means on; raises ValueError for a value that is neither on nor off."""
    word = value.strip().lower()
    if word in ON:
        return True
    if word in OFF:
        return False
    raise ValueError(f"DDPFIX={value!r} is not understood: use one of {', '.join(ON)} or {', '.join(OFF[1:])}")


def refused() -> bool:
    """Whether the environment says that nothing may happen here (``DDPFIX=0`` wins over everything)."""
    value = os.environ.get("DDPFIX")
    return value is not None and not sys.flags.ignore_environment and not switch(value)


def start() -> None:
    """Arm the finder if the environment asks for it. Isolated interpreters (-I, -E) are left alone."""
    if sys.flags.ignore_environment or not switch(os.environ.get("DDPFIX", "")):
        return
    from ddpfix import finder

    finder.install()
