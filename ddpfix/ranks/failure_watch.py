"""A rank that fails leaves the cause for the others, which end with it instead of waiting in a collective for ever.

The cause goes through the process group's store. Each rank looks there every two seconds (of 400 ranks and more all
together 200 times a second), from a thread of its own. A rank that is then still busy after some seconds waits for the
failed one in a collective, where no exception reaches it: its process is ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from typing import Any, Iterator, List, Optional

from ddpfix import log
from ddpfix.ranks import error_file
from ddpfix.ranks.store import default_store, has, keys, look_until, put

# Seconds between two looks of a rank at the store, and how many looks a second the store has to answer at most.
PERIOD = 2.0
LOOKS = 200
# How long a failed rank waits until all others have seen the cause: rank 0 may hold the store, which ends with it.
LINGER = 5.0
# How long a rank may go on after another one has failed; most end by themselves, at the next agreement.
GRACE = 20.0
# How many characters of a cause are left for the others.
LENGTH = 6000

_WATCHES: List[Watch] = []
_CAUSE = "cause"


def _keys(store: Any) -> Any:
    return keys(store, "failed")


def announce(error: BaseException) -> None:
    """Leave this rank's error for the others, unless another rank has left one, and for torch elastic.

    Args:
        error: the one that is being handled.
    """
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
    """The same on a connection of the caller's own to the keys ``failed``."""
    own = str(rank)
    if bytes(store.compare_set("first", "", own)).decode() != own:
        return False
    if not has(store, _CAUSE):
        put(store, _CAUSE, text[:LENGTH])
    return True


def cause() -> Optional[str]:
    """The cause that the first failed rank left, or None."""
    store = default_store()
    try:
        return None if store is None else cause_in(_keys(store))
    except Exception as error:
        log.debug(f"the store does not answer: {error!r}")
    return None


def cause_in(store: Any) -> Optional[str]:
    """The same on a connection of the caller's own to the keys ``failed``."""
    return bytes(store.get(_CAUSE)).decode(errors="replace") if has(store, _CAUSE) else None


class PeerFailedError(RuntimeError):
    """This rank ends because another one has failed; the message says which, and why.

    Args:
        text: the cause that the other rank left.
    """

    def __init__(self, text: str) -> None:
        super().__init__("ddpfix: " + peer_message(text))


def peer_message(text: str) -> str:
    """The message on a rank that ends because of a cause that another one left."""
    return f"{text} (this rank ends because of it)"


@contextlib.contextmanager
def propagate_failure() -> Iterator[None]:
    """End all ranks with the cause if this block raises on one of them; torch elastic's summary has the cause as well.

    Raises:
        PeerFailedError: instead of what a collective raises here after another rank has failed.
    """
    watch()
    with error_file.written_last(), _propagating():
        yield


@contextlib.contextmanager
def _propagating() -> Iterator[None]:
    try:
        yield
    except PeerFailedError:
        _set_free()
        raise
    except Exception as error:
        _set_free()
        other_cause = next((watching.cause for watching in _WATCHES if watching.cause), None)
        if other_cause is not None:
            raise PeerFailedError(other_cause) from error
        announce(error)
        _linger()
        raise


def _set_free() -> None:
    for watching in _WATCHES:
        watching.free = True


def _linger() -> None:
    """Wait until the others have seen the cause, for some seconds at most."""
    from torch import distributed

    with contextlib.suppress(Exception):
        store, size = _keys(default_store()), distributed.get_world_size()
        look_until(lambda: store.add("seen", 0) >= size, lambda waited: waited > LINGER, (0.05, 0.05))


def watch() -> None:
    """Have the store looked at from now on, until its process group is destroyed; once for a group."""
    store = default_store()
    if store is None or any(watching.original() is store for watching in _WATCHES):
        return
    stop()
    watching = Watch(store)
    _WATCHES.append(watching)
    watching.start()


_TOLD_ELSEWHERE: List[str] = []


def tell_elsewhere(toolkit: str) -> None:
    """A toolkit's patch reports the failures of this rank from now on, and nobody else is to."""
    _TOLD_ELSEWHERE.append(toolkit)


def tell_here() -> None:
    """Undo of :func:`tell_elsewhere`."""
    _TOLD_ELSEWHERE.clear()


def is_told_elsewhere() -> bool:
    """Whether :func:`tell_elsewhere` holds."""
    return bool(_TOLD_ELSEWHERE)


def is_watching() -> bool:
    """Whether a toolkit's own failures are watched on this rank."""
    return bool(_WATCHES)


def stop() -> None:
    """End all watches (undo, or the process ends)."""
    while _WATCHES:
        _WATCHES.pop().end()


atexit.register(stop)


def write(text: str) -> None:
    """Write torch elastic's error file on a rank that ends because of another one."""
    try:
        raise PeerFailedError(text)
    except PeerFailedError as error:
        error_file.write(error)


class Watch(threading.Thread):
    """Looks whether a rank has failed, and ends this process if it cannot end by itself.

    It ends when the process group is destroyed, and holds no store that could keep a port from the next group.
    """

    def __init__(self, store: Any) -> None:
        from torch import distributed

        super().__init__(name="ddpfix-failures", daemon=True)
        self.over = threading.Event()
        self.original = weakref.ref(store)
        # A connection of its own, where torch has that: the main thread may be waiting with this one.
        self.connection = _keys(store).clone() if hasattr(store, "clone") else None
        # A single process serves the store to all ranks.
        self.period = max(PERIOD, distributed.get_world_size() / LOOKS)
        # Whether this rank has an exception of its own already, and so does not wait in a collective.
        self.free = False
        # The cause that another rank left.
        self.cause: Optional[str] = None

    def run(self) -> None:
        while not self.over.wait(self.period) and self.original() is not None:
            try:
                text = self._look()
            except Exception:
                # The store has ended with the rank that kept it, in most cases because the job has ended.
                break
            if text is not None:
                self._end_for(text)
                break
        self.connection = None

    def _look(self) -> Optional[str]:
        store = self._store()
        return None if store is None else cause_in(store)

    def _store(self) -> Any:
        original = self.original()
        return _keys(original) if self.connection is None and original is not None else self.connection

    def _end_for(self, text: str) -> None:
        if not self.free:
            self.cause = text
            log.error(peer_message(text))
        with contextlib.suppress(Exception):
            self._store().add("seen", 1)
        if not self.over.wait(GRACE) and not self.free:
            log.error("this rank waits for the failed one in a collective, so its process is ended")
            write(text)
            sys.stdout.flush()
            os._exit(1)

    def end(self) -> None:
        self.over.set()
        if threading.current_thread() is not self:
            self.join(1.0)
