"""Whether ``DDPFIX`` says on or off, and one safe line on stderr.

This is read at the start of every process, so it imports nothing but the standard library's smallest parts.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")
# Where launchers say which of a node's ranks a process is, or which rank: torchrun; srun; Open MPI; other MPIs.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "RANK", "PMI_RANK")


def switch(value: str) -> bool:
    """Return whether a value of ``DDPFIX`` means on; raise ValueError for a value that is neither on nor off."""
    word = value.strip().lower()
    if word in ON:
        return True
    if word in OFF:
        return False
    raise ValueError(f"DDPFIX={value!r} is neither on ({', '.join(ON)}) nor off ({', '.join(OFF[1:])})")


def printable(text: str) -> str:
    """Return a text in which nothing commands a terminal, in one line: names and messages come from outside."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def say(message: str) -> None:
    """Write one line to stderr. It may be closed, full or a broken pipe, and none of that may end the program."""
    line = "ddpfix: " + printable(message.replace("\n", " ")) + "\n"
    try:
        if sys.stderr is sys.__stderr__ and sys.stderr is not None:
            # What a full disk refuses would stay in the stream's buffer, and fail again at the end (exit code 120).
            os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
        else:
            sys.stderr.write(line)
    except (AttributeError, OSError, ValueError):
        return


def is_on(value: str) -> bool:
    """Like :func:`switch`, but a value that is not understood is reported once a process, and does not mean on."""
    try:
        return switch(value)
    except ValueError as error:
        if value not in _reported:
            _reported.append(value)
            refuse(str(error))
        return False


def refuse(why: str) -> None:
    """Say why nothing is done in this process: once a node of a job, and in no worker of a rank: they have one setting.

    Where a rank alone is refused, the others name it when they compare what ddpfix does.
    """
    if _speaks():
        say(f"{why}. ddpfix is OFF in this process")


def _speaks() -> bool:
    """Return whether this process speaks for its node: the first rank on it, or one that no launcher has started."""
    local = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name)), "")
    return local in ("", "0") and not _is_worker(bool(local))


def hint() -> None:
    """Say that settings are given and nothing is switched on, unless the program has begun to do that itself."""
    given = sorted(name for name in os.environ if name.startswith("DDPFIX_"))
    words = " ".join(getattr(sys, "orig_argv", ())[:4])
    if given and "ddpfix.engine" not in sys.modules and _speaks() and "compile_worker" not in words:
        more = f" (and {len(given) - 1} more)" if len(given) > 1 else ""
        say(f"{given[0]}{more} is set, but DDPFIX=1 is not: ddpfix is off unless the program switches it on itself")


def _is_worker(launched: bool) -> bool:
    """Return whether multiprocessing has started this process, and another one with the same environment says why.

    Args:
        launched: as a child of a rank that a launcher has started; where none has, the first child counts as a rank.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        # The interpreter has just begun.
        return any("multiprocessing" in word for word in getattr(sys, "orig_argv", ()))
    # Set before the child imports anything; its parent is known later.
    name = process.current_process().name
    return name != "MainProcess" and (launched or not name.endswith("-1"))


def is_second(other: Optional[str]) -> bool:
    """Return whether another copy of ddpfix is at work in this process, which is reported once."""
    if other is not None and other not in _reported:
        _reported.append(other)
        say(f"this copy is not used, because another one is active in this process: {os.path.dirname(other)}")
    return other is not None


_reported: list[str] = []


def refused() -> bool:
    """Return whether the environment says that nothing may happen here (``DDPFIX=0`` wins over everything)."""
    value = os.environ.get("DDPFIX", "")
    # An empty variable says nothing, as everywhere in a shell.
    return bool(value.strip()) and not sys.flags.ignore_environment and not is_on(value)
