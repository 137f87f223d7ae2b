"""The Python stacks of a rank that hangs, in a file of its own."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import tempfile
import time

from ddpfix import log
from ddpfix.system import System


def folder(chosen: str) -> str:
    """Return a folder for the stacks of one hang, chosen by the user or a temporary one: ranks share its name."""
    if chosen:
        return chosen
    return os.path.join(tempfile.gettempdir(), f"ddpfix-hang-{time.strftime('%Y%m%d-%H%M%S')}-{System.pid()}")


def write(where: str, rank: int, text: str) -> bool:
    """Add this process's stacks to ``hang-rank-N.txt`` in a folder, made if missing; return whether it was possible."""
    try:
        os.makedirs(where, exist_ok=True)
        with System.open(os.path.join(where, f"hang-rank-{rank}.txt"), "a", encoding="utf-8") as file:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"{when} rank {rank}, process {System.pid()} on {System.host()}: {text}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            with contextlib.suppress(OSError):
                file.write("\n")
    except (OSError, ValueError) as error:
        log.debug(f"no stacks are written into {where}: {error!r}")
        return False
    return True
