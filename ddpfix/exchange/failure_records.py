"""What a rank that fails leaves in the process group's store: the cause, and who has read and printed it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from typing import Optional

from ddpfix.exchange import first_failure
from ddpfix.exchange.connection import Connection
from ddpfix.exchange.keys import is_first
from ddpfix.system import System


class FailureRecords:
    """One rank's view of it."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self._store, self._rank = connection.store, rank

    def claim(self, text: str) -> bool:
        """Leave the cause; returns whether this rank is the first to do so."""
        return first_failure.claim_in(self._store(), self._rank, text)

    def cause(self) -> Optional[str]:
        """Return the cause that another rank, the first that failed, has left."""
        return first_failure.cause_in(self._store(), self._rank)

    def acknowledge(self) -> None:
        """Tell a rank that has failed that this one knows the cause."""
        self._store().add("seen", 1)

    def acknowledged(self) -> int:
        """Return how many ranks know the cause."""
        return int(self._store().add("seen", 0))

    def says_first(self, text: str) -> bool:
        """Return whether no other rank prints this text into the same stderr: the ranks of a node mostly share one."""
        where = _stream()
        key = hashlib.sha1(f"{where} {text}".encode()).hexdigest()[:16]
        return not where or is_first(self._store(), f"said/{key}", self._rank)


def _stream() -> str:
    """Return what tells this process's stderr from that of other ranks: its file and its machine; "" if not known."""
    with contextlib.suppress(Exception):
        status = os.fstat(sys.stderr.fileno())
        return f"{System.host()} {status.st_dev} {status.st_ino}"
    return ""
