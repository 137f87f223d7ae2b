"""A rank that fails leaves the cause for the others in the process group's store; nobody is ended for it."""

from __future__ import annotations

from typing import Any, Optional

from ddpfix import log
from ddpfix.exchange.keys import default_store, has, is_first, job, put

# How many characters of a cause are left for the others.
LENGTH = 6000

_CAUSE = "cause"


def claim(text: str) -> bool:
    """Leave a cause for the other ranks; returns whether this rank is the first to do so, also when called again.

    Without a store ranks cannot compare, and every rank is the first.
    """
    from torch import distributed

    store = default_store()
    return store is None or claim_in(job(store), distributed.get_rank(), text)


def claim_in(store: Any, rank: int, text: str) -> bool:
    """Return the same on a connection of the caller's own to the keys of the job."""
    if not is_first(store, "first", rank):
        return False
    if not has(store, _CAUSE):
        put(store, _CAUSE, text[:LENGTH])
    return True


def cause() -> Optional[str]:
    """Return the cause that another rank, the first that failed, has left; None where there is none."""
    from torch import distributed

    store = default_store()
    try:
        return None if store is None else cause_in(job(store), distributed.get_rank())
    except Exception as error:
        log.debug(f"the store does not answer: {error!r}")
    return None


def cause_in(store: Any, rank: int) -> Optional[str]:
    """Return the same on a connection of the caller's own to the keys of the job."""
    if not has(store, _CAUSE) or bytes(store.get("first")).decode() == str(rank):
        return None
    return bytes(store.get(_CAUSE)).decode(errors="replace")


class PeerFailedError(RuntimeError):
    """This rank ends because another one has failed; the message says which, and why."""

    def __init__(self, text: str) -> None:
        super().__init__(f"ddpfix: {text} (this rank ends because of it)")
