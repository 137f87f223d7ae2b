"""Runs the demo as a user does, in an environment without settings of ddpfix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path, **more: str) -> Dict[str, str]:
    """The demo's temporary folder comes to lie in ``folder``, where a test can look for what is left of it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    return {**environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **more}


def command(*words: str) -> List[str]:
    return [sys.executable, "-m", "ddpfix", "demo", *words]


def demo(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=folder,
        env=environment(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def processes(folder: Path) -> List[str]:
    """The command lines, of any process, that name this folder: launchers and ranks of a demo that uses it."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            commands.append(words)
    return commands
