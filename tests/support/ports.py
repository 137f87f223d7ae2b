"""A port at which ranks can meet."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the ports that systems give to clients. A client of torch 2.0 tries again at once while nobody listens yet, and
# a connection from a port of the system's choice to that same port connects to itself: then the ranks never meet.
_FIRST, _LAST = 15000, 32000


def free_port() -> int:
    """A port that nobody has, and that no client gets by chance."""
    # A generator of its own: that of the program is seeded.
    draws = random.SystemRandom()
    for _ in range(100):
        port = draws.randint(_FIRST, _LAST)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port between {_FIRST} and {_LAST}")
