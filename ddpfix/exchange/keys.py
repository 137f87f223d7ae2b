"""ddpfix's keys in the process group's store, and how a rank waits for the values of others.

A rank polls. The store's own ``wait`` holds the connection until the key is there or its time is up: in
torch 2.13 another thread of the same rank waits 2.7 of 3 seconds for its turn, so that no rank could write or read why
one has failed; no signal is handled in it, and it does not notice ranks that have ended.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix import log
from ddpfix.groups.internals import group_store as group_store
from ddpfix.groups.internals import is_programs as is_programs
from ddpfix.system import Wait

# Keys in one message, where many are looked at.
_TOGETHER = 64
# Looks a second that the ranks of a group ask of the server together, at most, while they wait for long.
_LOOKS = 10_000


class _Session(NamedTuple):
    """The counters of this process for one default process group; the next group begins with new ones.

    Attributes:
        generation: how often this rank has announced itself to the server behind the store, this time included. A
            server may outlive a group (that of torch elastic), and nothing of that group may be read.
    """

    generation: int
    counts: Dict[str, int]
    remembered: Dict[str, int]


# By the store object of the default group, and weak: a store that is kept alive keeps its port, which the next group
# may want. None for a store in which ranks cannot find what others put there.
_SESSIONS: weakref.WeakKeyDictionary[Any, Optional[_Session]] = weakref.WeakKeyDictionary()
# A key that is never put.
_NO_KEY = "ddpfix"


def default_store() -> Any:
    """Return the store that torch made for the default process group, for keys that stay there.

    None where there is none, where nobody can read from it (torch's fake backend), and where the program gave a store
    of its own, which it may count or wait on: :func:`passing_store` is for that.
    """
    return None if is_programs() else passing_store()


def passing_store() -> Any:
    """Return the store of the default process group, for keys that are deleted when all have read them; None as above.

    In a store of the program's own, keys have to be deleted; in one that torch made they may be.
    """
    store = group_store()
    return store if store is not None and _session(store) is not None else None


def can_ask() -> bool:
    """Return whether ranks can be asked: this process has a group, with a store that all of them can read."""
    return passing_store() is not None


def enter(store: Any) -> None:
    """Count this rank in when a group is initialized, once a store object; forget the values of the group before."""
    if is_programs():
        # A program may make one group after the other with one store, and on some ranks with the same object.
        _SESSIONS.pop(store, None)
    session = _session(store)
    if session is not None:
        session.remembered.clear()


def generation(store: Any) -> int:
    """Return how often this rank has announced itself to the server behind the store; 0 where it leaves no mark."""
    session = _session(store)
    return 0 if session is None else session.generation


def _session(store: Any) -> Optional[_Session]:
    if store not in _SESSIONS:
        try:
            _SESSIONS[store] = _begun(store)
        except Exception as error:
            log.debug(f"ranks cannot be asked through a {type(store).__name__}: {error!r}")
            _SESSIONS[store] = None
    return _SESSIONS[store]


def _begun(store: Any) -> _Session:
    """Return a session; raise where the store lacks what is needed, which is known only by a call.

    Every class of stores has all methods from its base, which has them only to raise.
    """
    from torch import distributed

    if hasattr(store, "check"):
        store.check([_NO_KEY])
    if is_programs():
        store.delete_key(_NO_KEY)
        return _Session(0, {}, {})
    return _Session(_marks(store).add(str(distributed.get_rank()), 1), {}, {})


def is_here(store: Any, rank: int) -> bool:
    """Return whether a rank has left its mark for the group of this store: then ddpfix is active there.

    In a store of the program's own nobody leaves a mark, and a rank that does not come is taken for a late one.
    """
    return is_programs() or bool(_marks(store).add(str(rank), 0) >= generation(store))


def delete(store: Any, names: Sequence[str]) -> None:
    """Delete ddpfix's keys that all ranks have read."""
    for name in names:
        store.delete_key(name)


def _marks(store: Any) -> Any:
    return _below(store, "here")


def job(store: Any) -> Any:
    """Return the keys of the job: who takes part, who has failed, where ranks wait. Threads of ddpfix read them."""
    return keys(store, "job")


def keys(store: Any, name: str) -> Any:
    """Return a part of the store for one purpose, which no other group of the same server reads.

    It keeps the store alive, and with it perhaps a port, so hold it for the length of a call only.
    """
    return _below(store, f"{generation(store)}/{name}")


def _below(store: Any, name: str) -> Any:
    from torch import distributed

    # A restarted job may find the store of the one before, and must not read in it.
    return distributed.PrefixStore(f"ddpfix/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}", store)


def count(store: Any, name: str) -> int:
    """Return how often this was called before with this name for this store's group; 0 where ranks cannot be asked."""
    session = None if store is None else _session(store)
    if session is None:
        return 0
    session.counts[name] = session.counts.get(name, -1) + 1
    return session.counts[name]


def remember(store: Any, name: str, number: int) -> None:
    """Keep a number in this process for as long as the group of this store lives; the first one of a name stays."""
    session = _session(store)
    if session is not None:
        session.remembered.setdefault(name, number)


def remembered(store: Any, name: str) -> Optional[int]:
    """Return the value kept under a name, or None."""
    session = _session(store)
    return None if session is None else session.remembered.get(name)


def put(store: Any, key: str, value: str) -> None:
    store.set(key, value)
    if not hasattr(store, "check"):
        store.add(key + "/set", 1)


def put_first(store: Any, key: str, value: str) -> None:
    """Put a value, unless there is one."""
    store.compare_set(key, "", value)
    if not hasattr(store, "check"):
        store.add(key + "/set", 1)


def is_first(store: Any, key: str, rank: int) -> bool:
    """Return whether no other rank has asked this before."""
    return bytes(store.compare_set(key, "", str(rank))).decode() == str(rank)


def decide(store: Any, key: str, agrees: bool) -> bool:
    """Decide something for all ranks, unless another one has; return what was decided."""
    return bytes(store.compare_set(key, "", "yes" if agrees else "no")) == b"yes"


def decision(store: Any, key: str) -> Optional[bool]:
    """Return what a rank has decided; None as long as none has."""
    found = bytes(store.compare_set(key, "", ""))
    return found == b"yes" if found else None


def be_lowest(store: Any, key: str, rank: int) -> int:
    """Have a key hold the number of this rank, unless it holds a lower one's; return what it holds then."""
    own = str(rank)
    found = bytes(store.compare_set(key, "", own)).decode()
    while int(found) > rank:
        found = bytes(store.compare_set(key, found, own)).decode()
    return int(found)


def has(store: Any, key: str) -> bool:
    """Return whether a key is there, without waiting for it; before torch 2.1 a counter beside it is read."""
    return bool(store.check([key]) if hasattr(store, "check") else store.add(key + "/set", 0))


def absent(store: Any, names: Sequence[str]) -> List[str]:
    """Return those of many keys that are absent. One message asks for 64, and only where one lacks for each."""
    found: List[str] = []
    for begin in range(0, len(names), _TOGETHER):
        part = list(names[begin : begin + _TOGETHER])
        if not (hasattr(store, "check") and store.check(part)):
            found += [name for name in part if not has(store, name)]
    return found


def read(store: Any, names: Sequence[str]) -> List[bytes]:
    """Return the values of many keys that are there; one message brings 64 of them, as far as torch can."""
    found: List[bytes] = []
    for begin in range(0, len(names), _TOGETHER):
        part = list(names[begin : begin + _TOGETHER])
        found += store.multi_get(part) if hasattr(store, "multi_get") else [store.get(name) for name in part]
    return found


def pauses(first: float, last: float, size: int) -> Tuple[float, float]:
    """Seconds between two looks for :func:`look_until`: longer ones than ``last`` where many ranks look."""
    return first, max(last, size / _LOOKS)


def look_until(
    found: Callable[[], bool],
    give_up: Callable[[float], bool],
    pauses: Tuple[float, float],
    late: float = float("inf"),
    line: str = "",
) -> bool:
    """Poll until something is found; returns whether it was.

    Args:
        give_up: called with the seconds that this has taken so far, as long as nothing is found.
        pauses: seconds between two looks: short at first, because ranks mostly come together, and at most.
    """
    wait, pause = Wait(), pauses[0]
    while not found():
        waited = wait.seconds()
        if give_up(waited):
            return found()
        if waited > late:
            late = float("inf")
            log.info(line)
        wait.pause(pause)
        pause = min(pause * 1.5, pauses[1])
    return True
