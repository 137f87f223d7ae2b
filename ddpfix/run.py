"""``ddpfix run``: sets DDPFIX=1 and becomes the interpreter (or the program) with the rest of the command line.

Nothing is emulated, so script paths, ``sys.path[0]``, ``__main__``, flags, signals and the exit code are what they are
without us, and every Python child finds the variable.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Mapping

from ddpfix import matrix, settings

# Interpreter options that take a value as the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def become(rest: List[str], chosen: Mapping[str, str]) -> int:
    """Replace this process by the command; on Windows, where that breaks the process tree, run it as a child.

    Args:
        rest: the words after the options: a script, ``-m module``, ``-c code``, or a program, with its arguments.
        chosen: settings given on the command line, by name.

    Raises:
        SettingsError, MatrixError: bad input is refused here, where the user sees it, and not in every child.
    """
    environ = environment(chosen)
    settings.read({}, matrix.load().patches, environ)
    command = words(rest)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":
        return subprocess.call(command, env=environ)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        sys.stderr.write(f"ddpfix: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def words(rest: List[str]) -> List[str]:
    """The command line to become. What ends in .py, is a file here, or is -m or -c goes to this interpreter."""
    first = rest[0]
    program = None if first.endswith(".py") or os.path.dirname(first) else shutil.which(first)
    if first in ("-m", "-c") or (program is None and not _runs_by_itself(first)):
        return [sys.executable, *interpreter_flags(), *rest]
    return rest


def _runs_by_itself(path: str) -> bool:
    """Whether a path names a program that the system can start: executable, and no Python source."""
    return not path.endswith((".py", ".pyc", ".zip", ".pyz")) and os.path.isfile(path) and os.access(path, os.X_OK)


def interpreter_flags() -> List[str]:
    """The flags that this interpreter was started with (-O, -W, -X, -u, ...), to be passed on."""
    original = getattr(sys, "orig_argv", None)
    if original is None:
        unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
        return [*subprocess._args_from_interpreter_flags(), *unbuffered]  # type: ignore[attr-defined]
    flags: List[str] = []
    rest = iter(original[1:])
    for word in rest:
        # Our own "-m ddpfix" ends the interpreter's flags; so does the script of the console entry point.
        if not word.startswith("-") or word in ("-", "--") or _ends_flags(word):
            break
        flags.append(word)
        if word in _WITH_VALUE:
            flags.append(next(rest, ""))
    return flags


def _ends_flags(word: str) -> bool:
    """Whether a word holds the option -m or -c, alone or at the end of a cluster such as -um."""
    if word.startswith("--") or word.startswith(("-W", "-X")):
        return False
    return "m" in word[1:] or "c" in word[1:]


def environment(chosen: Mapping[str, str]) -> Dict[str, str]:
    """The environment of the command: DDPFIX=1 (a 0 that is there stays), the settings, and a way in if needed."""
    environ = dict(os.environ)
    environ.setdefault("DDPFIX", "1")
    if not environ["DDPFIX"].strip():
        environ["DDPFIX"] = "1"
    for name, value in chosen.items():
        environ[settings.PREFIX + name.upper()] = value
    if not installed():
        folder = str(Path(__file__).with_name("_site"))
        # Without an installed ddpfix.pth (a checkout), a sitecustomize of ours does its work and then the user's own.
        environ["PYTHONPATH"] = os.pathsep.join(p for p in (folder, environ.get("PYTHONPATH", "")) if p)
    return environ


def installed() -> bool:
    """Whether an interpreter started here will read a ddpfix.pth."""
    folders = list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return any(os.path.isfile(os.path.join(folder, "ddpfix.pth")) for folder in folders)
