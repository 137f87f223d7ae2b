"""What a rank that fails leaves in the process group's store: the cause, and who has read and printed it.

Nobody is ended for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from typing import Any, Callable, Optional

from ddpfix import log
from ddpfix.exchange.keys import default_store, has, is_first, job, put
from ddpfix.rules.finding import Finding
from ddpfix.system import System

_CAUSE = "cause"
# How many characters of an error are left for the others.
_LENGTH = 6000


class FailureRecords:
    """One rank's view of it; ``store`` gives the keys of the job."""

    def __init__(self, store: Callable[[], Any], rank: int) -> None:
        self._store, self._rank = store, rank

    def claim(self, found: Finding) -> bool:
        """Leave the cause; returns whether this rank is the first to do so, also when called again."""
        store = self._store()
        if not is_first(store, "first", self._rank):
            return False
        if not has(store, _CAUSE):
            put(store, _CAUSE, System.json(found._replace(where=found.where[:_LENGTH])))
        return True

    def cause(self) -> Optional[Finding]:
        """Return the cause that another rank, the first that failed, has left."""
        store = self._store()
        if not has(store, _CAUSE) or bytes(store.get("first")).decode() == str(self._rank):
            return None
        return Finding(*System.loads(store.get(_CAUSE)))

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


def _of_group() -> Optional[FailureRecords]:
    """Return the records on the group's own connection; None without a store."""
    from torch import distributed

    store = default_store()
    return None if store is None else FailureRecords(lambda: job(store), distributed.get_rank())


def claim(found: Finding) -> bool:
    """Leave the cause from a thread of the program; without a store every rank is the first."""
    records = _of_group()
    return records is None or records.claim(found)


def cause() -> Optional[Finding]:
    """Return the cause that another rank has left, in a thread of the program; None where there is none."""
    try:
        records = _of_group()
        return None if records is None else records.cause()
    except Exception as error:
        log.debug(f"the store does not answer: {error!r}")
    return None


class PeerFailedError(RuntimeError):
    """This rank ends because another one has failed; the message says which, and why."""

    def __init__(self, cause: Optional[Finding], otherwise: str = "") -> None:
        super().__init__(f"ddpfix: {cause.line if cause else otherwise} (this rank ends because of it)")
