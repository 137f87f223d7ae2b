"""Whether the process that wrote a trace still runs, as far as this machine knows."""

from __future__ import annotations

import os
import socket
from typing import Any


def has_exited(pid: Any, host: Any) -> bool:
    """Return whether a process has exited; False where it ran on another machine, and nobody here knows."""
    if type(pid) is not int or not 0 < pid < 2**31 or host != socket.gethostname() or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
