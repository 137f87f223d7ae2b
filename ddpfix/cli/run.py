"""``ddpfix run``: sets DDPFIX=1 and becomes the interpreter (or the program) with the rest of the command line.

Nothing is emulated, so script paths, ``sys.path[0]``, ``__main__``, flags, signals and the exit code are what they are
without us, and every Python child finds the variable.
"""

from __future__ import annotations

import os
import shutil
import signal
import site
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional

from ddpfix import _switch
from ddpfix.matrix import loader
from ddpfix.settings import reading


def become(rest: List[str], chosen: Mapping[str, str]) -> int:
    """Become the command (on Windows, run it as a child); bad settings are refused here, where the user sees it."""
    command = words(rest)
    environ = environment(chosen)
    if environ["DDPFIX"] != "0":
        # As arguments, too: an empty one is refused, while an empty variable counts as not set.
        reading.read(chosen, loader.load().patches, environ)
        if sys.flags.ignore_environment or sys.flags.no_site:
            _switch.say("ddpfix is OFF: Python's options -I, -E and -S keep it from starting")
    _flush()
    if os.name == "nt":
        return subprocess.call(command, env=environ)
    _restore_signals()
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        _switch.say(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A stream that was closed by the caller is None.
        if stream is not None:
            stream.flush()


def _restore_signals() -> None:
    """Python ignores these at its start, and what is ignored stays ignored in the program that takes its place."""
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):
        number = getattr(signal, name, None)
        if number is not None:
            signal.signal(number, signal.SIG_DFL)


def words(rest: List[str]) -> List[str]:
    """Return the command line to become. What ends in .py, is a file here, or is -m or -c goes to this interpreter."""
    first = rest[0]
    if first[:2] in ("-m", "-c") or not _is_program(first):
        return [sys.executable, *interpreter_flags(), *rest]
    return rest


def _is_program(word: str) -> bool:
    """Return whether a word is a command of the shell: on PATH, or a path to an executable that is no Python source."""
    if word.endswith((".py", ".pyc", ".zip", ".pyz")):
        return False
    if os.path.dirname(word):
        return os.path.isfile(word) and os.access(word, os.X_OK)
    return shutil.which(word) is not None


def interpreter_flags() -> List[str]:
    """Return the flags that this interpreter was started with (-O, -W, -X, -u, ...), to be passed on."""
    original = _original_argv()
    if original is None:
        unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
        return [*subprocess._args_from_interpreter_flags(), *unbuffered]  # type: ignore[attr-defined]
    flags: List[str] = []
    rest = iter(original[1:])
    for word in rest:
        # The script of the console entry point ends the interpreter's flags.
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            flags.extend([word, next(rest, "")])
        elif _cluster(word, rest, flags):
            break
    return flags


def _original_argv() -> Optional[List[str]]:
    """Return the words that the interpreter was started with, its own flags included; None where they are not known."""
    known: Optional[List[str]] = getattr(sys, "orig_argv", None)
    if known is not None:
        return known
    try:
        # Python 3.8 and 3.9 do not keep them, Linux does.
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return None


def _cluster(word: str, rest: Iterator[str], flags: List[str]) -> bool:
    """Add one word of flags, such as -u, -uB or -uWerror; True if it holds our own -m, which ends them."""
    for place, letter in enumerate(word[1:], start=1):
        if letter in "mc":
            flags.extend([word[:place]] if place > 1 else [])
            return True
        if letter in "WX":
            flags.append(word)
            # The value is the rest of this word, or the next one.
            flags.extend([next(rest, "")] if place == len(word) - 1 else [])
            return False
    flags.append(word)
    return False


def environment(chosen: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of the command: DDPFIX=1, the settings, and a way in if needed."""
    environ = dict(os.environ)
    if _switch.refused():
        # A value that is not understood has just been reported, and the children need not report it again.
        environ["DDPFIX"] = "0"
        return environ
    environ["DDPFIX"] = "1"
    for name, value in chosen.items():
        environ[reading.PREFIX + name.upper()] = value
    if not start_files():
        folder = str(Path(__file__).parents[1] / "_site")
        # Without an installed ddpfix.pth (a checkout), our sitecustomize does its work and then imports the user's own.
        environ["PYTHONPATH"] = os.pathsep.join(p for p in (folder, environ.get("PYTHONPATH", "")) if p)
    return environ


def start_files() -> List[str]:
    """Return each ddpfix.pth that an interpreter started here will read."""
    folders = list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    files = [os.path.join(folder, "ddpfix.pth") for folder in dict.fromkeys(folders)]
    return [file for file in files if os.path.isfile(file)]
