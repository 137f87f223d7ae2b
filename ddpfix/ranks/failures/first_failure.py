"""A rank that fails leaves the cause for the others in the process group's store; those that fail because of it say so.

Nobody is ended for it: a rank that waits for the failed one in a collective learns of it when that collective fails.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional

from ddpfix import log
from ddpfix.ranks.failures import error_file
from ddpfix.ranks.failures.last_words import follows
from ddpfix.ranks.store.keys import default_store, has, keys, look_until, put

# How long a failed rank waits until all others have seen the cause: rank 0 may hold the store, which ends with it.
LINGER = 5.0
# How many characters of a cause are left for the others.
LENGTH = 6000

_CAUSE = "cause"


def _keys(store: Any) -> Any:
    return keys(store, "failed")


def announce(error: BaseException) -> None:
    """Leave this rank's error for the others, unless another rank has left one, and for torch elastic."""
    from torch import distributed

    if default_store() is None or isinstance(error, PeerFailedError):
        return
    error_file.write(error)
    text = f"rank {distributed.get_rank()} failed: {type(error).__name__}: {error}"
    for _ in range(2):
        # The death of a data-loader worker is raised by a signal: in the midst of this, perhaps.
        with contextlib.suppress(Exception):
            claim(text)
            return


def claim(text: str) -> bool:
    """Leave a cause for the other ranks; returns whether this rank is the first to do so, also when called again.

    Without a store ranks cannot compare, and every rank is the first.
    """
    from torch import distributed

    store = default_store()
    return store is None or claim_in(_keys(store), distributed.get_rank(), text)


def claim_in(store: Any, rank: int, text: str) -> bool:
    """Return the same on a connection of the caller's own to the keys ``failed``."""
    own = str(rank)
    if bytes(store.compare_set("first", "", own)).decode() != own:
        return False
    if not has(store, _CAUSE):
        put(store, _CAUSE, text[:LENGTH])
    return True


def cause() -> Optional[str]:
    """Return the cause that another rank, the first that failed, has left; None where there is none."""
    from torch import distributed

    store = default_store()
    try:
        return None if store is None else cause_in(_keys(store), distributed.get_rank())
    except Exception as error:
        log.debug(f"the store does not answer: {error!r}")
    return None


def cause_in(store: Any, rank: int) -> Optional[str]:
    """Return the same on a connection of the caller's own to the keys ``failed``."""
    if not has(store, _CAUSE) or bytes(store.get("first")).decode() == str(rank):
        return None
    return bytes(store.get(_CAUSE)).decode(errors="replace")


class PeerFailedError(RuntimeError):
    """This rank ends because another one has failed; the message says which, and why."""

    def __init__(self, text: str) -> None:
        super().__init__(f"ddpfix: {text} (this rank ends because of it)")


@contextlib.contextmanager
def propagate_failure() -> Iterator[None]:
    """Tell the others the cause if this block raises, or raise PeerFailedError where another rank has failed before."""
    with error_file.written_last():
        try:
            yield
        except PeerFailedError:
            raise
        except Exception as error:
            other = cause()
            if other is not None:
                raise PeerFailedError(other) from error
            if not follows(error):
                announce(error)
                _linger()
            raise


def _linger() -> None:
    """Wait until the others have seen the cause, for some seconds at most."""
    from torch import distributed

    with contextlib.suppress(Exception):
        store, others = _keys(default_store()), distributed.get_world_size() - 1
        look_until(lambda: store.add("seen", 0) >= others, lambda waited: waited > LINGER, (0.05, 0.05))


_TOLD_ELSEWHERE: List[str] = []


def tell_elsewhere(toolkit: str) -> None:
    """A toolkit's patch reports the failures of this rank from now on, and nobody else is to."""
    _TOLD_ELSEWHERE.append(toolkit)


def tell_here() -> None:
    _TOLD_ELSEWHERE.clear()


def is_told_elsewhere() -> bool:
    """Return whether :func:`tell_elsewhere` holds."""
    return bool(_TOLD_ELSEWHERE)
