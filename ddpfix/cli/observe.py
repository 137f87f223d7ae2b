"""The work of ``ddpfix probe``: a few optimizer steps of the user's own script on one rank, and what they show.

The script runs in a process of its own under ddpfix, as by ``ddpfix run``; it is ended after the last step, and what it
has left in a file is printed here.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ddpfix import _switch
from ddpfix.cli import run
from ddpfix.matrix import loader
from ddpfix.probing.result import of_program
from ddpfix.settings import reading

VARIABLE = "_DDPFIX_PROBE"
# The patches that the command alone switches on end so.
PATCHES = ".probe"


def observe(rest: List[str], steps: str, as_json: bool, chosen: Mapping[str, str]) -> int:
    """Run the command, and print what was seen; return the exit code.

    Args:
        rest: the script, ``-m module``, ``-c code``, or program, with its arguments.

    Raises:
        SettingsError, MatrixError: bad input, which is refused before anything runs.
    """
    # There are digits that make no number, and numbers of thousands of digits.
    if not (steps.isascii() and steps.isdigit() and len(steps) < 10) or not int(steps):
        raise reading.SettingsError(f"--steps={steps[:40]!r}: expected whole numbers from 1 on")
    environ = run.environment(chosen)
    if environ["DDPFIX"] == "0":
        raise reading.SettingsError("DDPFIX=0 switches the probe off, too: unset it")
    # An untested release is observed as well: nothing of it is changed.
    patches = loader.load().patches
    environ.update({reading.switch_name(name): "force" for name in patches if name.endswith(PATCHES)})
    reading.read({}, patches, environ)
    command = run.words(rest)
    if command[0] == sys.executable:
        _alone(environ)
    with tempfile.TemporaryDirectory(prefix="ddpfix-probe-") as folder:
        file = Path(folder) / "found.json"
        environ[VARIABLE] = json.dumps({"steps": int(steps), "file": str(file)})
        code = _call(command, environ, as_json)
        found = _read(file)
    return _show(found, code, as_json)


def _alone(environ: Dict[str, str]) -> None:
    """What torch elastic gives to the one rank of a group, where nothing else has been set."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**given, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        environ.setdefault(name, value)


def _call(command: List[str], environ: Mapping[str, str], as_json: bool) -> int:
    """Run the command, and return its exit code as a shell has it; signals for this process are its own."""
    sys.stdout.flush()
    try:
        child = subprocess.Popen(command, env=environ, stdout=sys.stderr if as_json else None)
    except OSError as error:
        _switch.say(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    with _forwarded(child):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _forwarded(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM on; the terminal sends SIGINT to both, and the child decides."""
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number)),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(file: Path) -> Optional[Dict[str, Any]]:
    """Return the program's result; None where it was killed, or never imported torch."""
    try:
        found: Dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _show(found: Optional[Dict[str, Any]], code: int, as_json: bool) -> int:
    complete = found is not None and found["complete"]
    if found is None:
        _switch.say(_nothing(code))
    elif as_json:
        sys.stdout.write(json.dumps({**found, "exit_code": 0 if complete else code}, indent=2) + "\n")
    else:
        if not complete and code:
            found["end"] += f", with exit code {code}"
        sys.stdout.write("\n".join(of_program(found)) + "\n")
    return 0 if complete else code


def _nothing(code: int) -> str:
    """Return why a program has left nothing, from its exit code as a shell has it."""
    if code > 128 and code - 128 in set(signal.Signals):
        return f"{signal.Signals(code - 128).name} ended the program before anything was observed"
    if not code:
        return "the program ended before it imported torch, or by os._exit: nothing was observed"
    return f"the program ended with exit code {code} before it imported torch (or by os._exit); its error is above"
