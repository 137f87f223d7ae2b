"""Switches ddpfix on from the environment. ``ddpfix.pth`` imports this in every interpreter that has DDPFIX set.

It runs at the start of every process, so it imports nothing but the standard library's smallest parts and leaves a
finder behind; the engine is loaded when the first watched toolkit is imported.
"""

from __future__ import annotations

import os
import sys

from ddpfix import _switch


def start() -> None:
    """Arm the finder if the environment asks for it. Isolated interpreters (-I, -E) are left alone.

    A rank that has settings and no switch gets a line when it imports torch, and nothing else.
    """
    value = os.environ.get("DDPFIX")
    if sys.flags.ignore_environment or (value is not None and not _switch.is_on(value)):
        return
    from ddpfix import import_hook

    if value is None:
        import_hook.install(frozenset(("torch",)), _switch.hint)
        return

    if not _switch.is_second(import_hook.of_another_copy()):
        import_hook.install(watched(), wake)


def wake() -> None:
    """Load the engine, because a toolkit is about to be imported."""
    # A failure here would fail the import of torch itself, so nothing may escape.
    try:
        from ddpfix import engine

        engine.switch_on()
    except (Exception, SystemExit) as error:
        # The message of a ValueError of ours is complete; for any other error, its type is needed as well.
        text = str(error) if isinstance(error, ValueError) else repr(error)
        _switch.refuse(text)


def watched() -> frozenset[str]:
    """Return the import names of the toolkits in the matrix: the engine is loaded when the first of them is imported.

    The second line of the compiled matrix names them. ``torch`` is always among them: a file that cannot be read is
    reported by the engine, which reads it as a whole.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compat_matrix.json")
    try:
        with open(path, encoding="utf-8") as file:
            file.readline()
            return frozenset(("torch", *file.readline().split()))
    except (OSError, ValueError):
        return frozenset(("torch",))
