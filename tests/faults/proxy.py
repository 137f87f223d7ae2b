"""A process between the ranks and the store, which answers late, or goes away."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import List, Tuple

from tests.faults.inject import GONE, PORT


def start(folder: Path, delay: float) -> Tuple[int, int]:
    """Start it; returns its port and its process, which ends when the file ``GONE`` is there.

    Args:
        folder: of the run; a rank leaves the store's port there.
        delay: seconds that each message takes.
    """
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    child = os.fork()
    if child == 0:
        try:
            threading.Thread(target=_accept, args=(listening, folder, delay), daemon=True).start()
            while not (folder / GONE).exists() and os.getppid() != 1:
                time.sleep(0.02)
        finally:
            os._exit(0)
    port = int(listening.getsockname()[1])
    listening.close()
    return port, child


def _accept(listening: socket.socket, folder: Path, delay: float) -> None:
    pairs: List[socket.socket] = []
    while True:
        near, _ = listening.accept()
        while not (folder / PORT).exists():
            time.sleep(0.01)
        far = socket.create_connection(("127.0.0.1", int((folder / PORT).read_text())))
        pairs += [near, far]
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(one, other, delay), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket, delay: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            content = one.recv(65536)
            if not content:
                break
            time.sleep(delay)
            other.sendall(content)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
