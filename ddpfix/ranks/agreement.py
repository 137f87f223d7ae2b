"""Rank agreement: before the first collective of a wrapped model, all ranks compare what ddpfix does on them.

A rank on which ddpfix is missing, or does something else, would make the others wait for ever or train something
else. The comparison goes through the process group's store (a few small keys a rank), never through a collective,
because a collective would hang on exactly the rank that is to be found. Every rank compares itself with rank 0 only,
so the work of a rank does not grow with the world size.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import sys
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional

from ddpfix import log

# Seconds between two looks at the store: short at first, because ranks mostly come together.
_PAUSE = (0.0005, 0.5)
# Seconds for which the first rank of a group waits until the others know why it ends.
_LINGER = 5.0


class AgreementError(RuntimeError):
    """A rank lacks ddpfix, or does not do the same there. The message names the rank and the difference."""


class _Session:
    """What this process counts while one default process group lives; the next group begins anew.

    Args:
        generation: how often this rank has announced itself to the server behind the store, this time included. A
            server may outlive a group (a user's own, that of torch elastic), and nothing of that group may be read.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        # How many meetings each group of ranks has held.
        self.meetings: Dict[str, int] = {}


# By the store object of the default group, and weak: a store that is kept alive keeps its port, which the next group
# may want.
_SESSIONS: weakref.WeakKeyDictionary[Any, _Session] = weakref.WeakKeyDictionary()


def _session(store: Any) -> _Session:
    """The session of a store; where there is none yet, this rank is counted in, once a store object."""
    found = _SESSIONS.get(store)
    if found is None:
        from torch import distributed

        found = _SESSIONS[store] = _Session(store.add(_mark(distributed.get_rank()), 1))
    return found


def announce() -> None:
    """Leave a mark in the store that ddpfix is at work on this rank; called when the process group has come up.

    A rank with the mark that is late is waited for; a rank without it is not, and one that ended with an error is not
    any more.
    """
    store = default_store()
    if store is not None:
        _session(store)
        atexit.unregister(_leave)
        atexit.register(_leave)


def key(name: object) -> str:
    """A key of ours in the default group's store, which no other group of the same server reads."""
    return _key(default_store(), name)


def _key(store: Any, name: object) -> str:
    return f"{_start()}/{0 if store is None else _session(store).generation}/{name}"


def _start() -> str:
    """A restarted job may find the store of the one before, and must not read in it."""
    return f"ddpfix/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _mark(rank: int) -> str:
    return f"{_start()}/here/{rank}"


# How many ranks have ended with an error; each leaves a key of its own below it as well.
_ENDED = "ended"


def _leave() -> None:
    """Tell the ranks that may be waiting for this one that it ends with an error."""
    if getattr(sys, "last_value", None) is None:
        return
    # Whoever holds the store may be gone already, and then nobody is left to be told.
    with contextlib.suppress(Exception):
        from torch import distributed

        store = default_store()
        if store is not None:
            store.add(_key(store, f"{_ENDED}/{distributed.get_rank()}"), 1)
            store.add(_key(store, _ENDED), 1)


def _put(store: Any, key: str, value: str) -> None:
    store.set(key, value)
    store.add(key + "/set", 1)


def _has(store: Any, key: str) -> bool:
    """Whether a key is there, without waiting for it. Before torch 2.1 a prefixed store has no ``check``."""
    return bool(store.add(key + "/set", 0))


def default_store() -> Any:
    """The store that torch elastic's rendezvous gave the default process group, or None where there is none."""
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._get_default_store()
    except (RuntimeError, ValueError, AttributeError, KeyError):
        return None


def meet(ranks: List[int], rank: int, facts: Mapping[str, str], seed: int, limit: float) -> Optional[int]:
    """Compare ``facts`` with all ranks of a group and return the seed of its first rank.

    None where the process group has no store (the MPI backend): ranks then decide for themselves, as in stock.

    Args:
        ranks: the global ranks of the group, in the group's order.
        rank: this process's global rank.
        facts: what has to be equal everywhere, by name.
        seed: what this rank would take as the seed; the first rank's is taken.
        limit: seconds to wait for a rank that shows no sign of ddpfix.

    Raises:
        AgreementError: on every rank, if a rank lacks ddpfix or differs.
    """
    if len(ranks) == 1:
        return seed
    store = default_store()
    if store is None:
        log.warning(
            "the process group has no store, so ranks can agree on nothing: LayerDrop stays as shipped. A group that is"
            " started by torchrun has one."
        )
        return None
    return _Meeting(store, ranks, rank, facts, limit).hold(seed)


class _Meeting:
    def __init__(self, store: Any, ranks: List[int], rank: int, facts: Mapping[str, str], limit: float) -> None:
        group = hashlib.sha1(",".join(map(str, ranks)).encode()).hexdigest()[:12]
        self.session = _session(store)
        # The count tells the meetings of one group apart; its members hold them in the same order.
        count = self.session.meetings[group] = self.session.meetings.get(group, -1) + 1
        self.prefix = _key(store, f"meet/{group}/{count}")
        self.store, self.ranks, self.rank, self.limit = store, ranks, rank, limit
        self.facts = dict(facts)
        # What is to be said if a rank that is waited for has ended.
        self.ended = ""

    def key(self, name: object) -> str:
        return f"{self.prefix}/{name}"

    def hold(self, seed: int) -> int:
        """The seed of the first rank; see :func:`meet`."""
        try:
            return self._held(seed)
        except AgreementError:
            # The first rank may hold the store, which goes with it: the others would see a broken connection.
            with contextlib.suppress(Exception):
                self._end_together()
            raise

    def _end_together(self) -> None:
        self.store.add(self.key("told"), 1)
        if self.rank == self.ranks[0]:
            coming = [rank for rank in self.ranks if not self.store.add(_key(self.store, f"{_ENDED}/{rank}"), 0)]
            expected = len(coming) - len(self._missing(coming))
            end = time.monotonic() + _LINGER
            while self.store.add(self.key("told"), 0) < expected and time.monotonic() < end:
                time.sleep(0.02)

    def _held(self, seed: int) -> int:
        _put(self.store, self.key(self.rank), json.dumps({"facts": self.facts, "seed": seed}))
        first = self._wait(self.ranks[0])
        difference = self._difference(first["facts"])
        if difference:
            self._conclude(difference)
        elif self.store.add(self.key("count"), 1) == len(self.ranks):
            self._conclude("ok")
        verdict = self._verdict()
        if verdict != "ok":
            raise AgreementError(verdict)
        return int(first["seed"])

    def _difference(self, theirs: Mapping[str, str]) -> Optional[str]:
        names = [name for name in {**theirs, **self.facts} if theirs.get(name) != self.facts.get(name)]
        if not names:
            return None
        parts = (f"{n} is {self.facts.get(n)!r} there and {theirs.get(n)!r} on rank {self.ranks[0]}" for n in names)
        return (
            f"ddpfix does not do the same on all ranks. Rank {self.rank}: {'; '.join(parts)}. "
            "Give every rank the same environment, or switch ddpfix off everywhere with DDPFIX=0."
        )

    def _conclude(self, verdict: str) -> None:
        # Several ranks may differ: the first one to say so is heard, the others' words would only replace it.
        if verdict == "ok" or self.store.add(self.key("faults"), 1) == 1:
            _put(self.store, self.key("verdict"), verdict)

    def _wait(self, rank: int) -> Dict[str, Any]:
        if not self._poll(self.key(rank), lambda: self._missing([rank]), lambda: [rank]):
            raise AgreementError(self.ended or self._absent([rank]))
        return dict(json.loads(self._get(self.key(rank))))

    def _verdict(self) -> str:
        # Only the group's first rank looks at every rank, and only when the time is up; the others wait for its word.
        chief = self.rank == self.ranks[0]
        if chief:
            found = self._poll(self.key("verdict"), self._anybody_missing, self._not_here)
        else:
            found = self._poll(self.key("verdict"), list, lambda: self.ranks[:1], 1.5)
        if not found and chief:
            self._conclude(self.ended or self._absent(self._anybody_missing()))
        elif not found:
            silent = f"rank {self.ranks[0]} gave no word within the time limit; see its own message"
            raise AgreementError(self.ended or silent)
        return self._get(self.key("verdict")).decode()

    def _not_here(self) -> List[int]:
        return [rank for rank in self.ranks if not _has(self.store, self.key(rank))]

    def _anybody_missing(self) -> List[int]:
        return self._missing(self._not_here())

    def _missing(self, ranks: List[int]) -> List[int]:
        """Those of ``ranks`` that left no mark for this group: they run without ddpfix."""
        return [rank for rank in ranks if self.store.add(_mark(rank), 0) < self.session.generation]

    def _absent(self, ranks: List[int]) -> str:
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        return (
            f"ddpfix is active on rank {self.rank} but not on rank {shown} (waited {self.limit:g} s, DDPFIX_TIMEOUT). "
            "Ranks that patch differently do not train the same model: install ddpfix there and set DDPFIX=1 on every "
            "rank, or DDPFIX=0 on all."
        )

    def _poll(
        self, key: str, missing: Callable[[], List[int]], awaited: Callable[[], List[int]], stretch: float = 1.0
    ) -> bool:
        """Wait for a key. Past the limit it goes on as long as no rank is missing: they are only late.

        Args:
            key: what is waited for.
            missing: ranks without ddpfix, asked for past the limit.
            awaited: the ranks on which it depends.
            stretch: this times the limit is waited for.
        """
        deadline = time.monotonic() + self.limit * stretch
        last = time.monotonic() + _patience()
        pause, told = _PAUSE[0], False
        while not _has(self.store, key):
            now = time.monotonic()
            if now > last or (now > deadline and missing()):
                return False
            if now > deadline and not told:
                told = True
                log.info("still waiting for the other ranks, which have ddpfix but are not here yet")
            if pause == _PAUSE[1] and self._has_ended(awaited):
                return _has(self.store, key)
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE[1])
        return True

    def _has_ended(self, awaited: Callable[[], List[int]]) -> bool:
        """Whether a rank that is waited for has ended with an error; one look at the store as long as none has."""
        if not self.store.add(_key(self.store, _ENDED), 0):
            return False
        gone = [rank for rank in awaited() if self.store.add(_key(self.store, f"{_ENDED}/{rank}"), 0)]
        if gone:
            self.ended = (
                f"rank {gone[0]} ended with an error before this model was wrapped there; its own message has the cause"
            )
        return bool(gone)

    def _get(self, key: str) -> bytes:
        return bytes(self.store.get(key))


def _patience() -> float:
    """How long a late rank is waited for: as long as torch itself waits in a collective."""
    from torch.distributed import distributed_c10d

    limit = getattr(distributed_c10d, "default_pg_timeout", timedelta(minutes=30))
    return float(limit.total_seconds())
