"""Rank agreement: before the first collective of a wrapped model, all ranks compare what ddpfix does on them.

A rank on which ddpfix is missing, or does something else, would make the others wait for ever or train something
else. The comparison goes through the process group's store (a few small keys a rank), never through a collective,
because a collective would hang on exactly the rank that this looks for. Every rank compares itself with rank 0 only,
so the work of a rank does not grow with the world size.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from ddpfix.exchange import keys as stores
from ddpfix.exchange.keys import (
    count,
    default_store,
    enter,
    group_store,
    has,
    is_here,
    keys,
    look_until,
    put,
    remember,
    remembered,
)
from ddpfix.groups import timeouts as limits
from ddpfix.groups.internals import Members as Members
from ddpfix.system import System

# Seconds between two looks at the store: short at first, because ranks mostly come together.
_PAUSE = (0.0005, 0.5)
# Seconds after which a rank that waits also looks whether another one has ended.
_LONG = 1.0
# Keys of one meeting, beside one for each rank.
_COUNT, _VERDICT, _READ = "count", "verdict", "read"
# Seconds for which the first rank of a group waits until the others know why it ends.
_LINGER = 5.0


class AgreementError(RuntimeError):
    """A rank lacks ddpfix, or does something else. The message names the rank and the difference."""


class StoreFailedError(AgreementError):
    """The process group's store does not answer."""


def meet(members: Members, facts: Mapping[str, str], seed: int, limit: float) -> Optional[int]:
    """Compare ``facts`` with all ranks of a group and return the seed of its first rank.

    None where ranks cannot be asked (the MPI backend has no store, torch's fake backend one that nobody reads): they
    then decide for themselves, as without ddpfix.

    Args:
        members: of the group; all of them come here.
        facts: what has to be equal everywhere, by name. A name that only one of two ranks has is not compared.
        seed: what this rank would take as the seed; the first rank's is taken.
        limit: seconds to wait for a rank that shows no sign of ddpfix.

    Raises:
        AgreementError: on every rank, if a rank lacks ddpfix or differs.
        StoreFailedError: the store does not answer.
    """
    store = stores.passing_store()
    if len(members.ranks) > 1:
        if store is None:
            return None
        try:
            seed = _Rendezvous(store, members, facts, limit).hold(seed)
        except AgreementError:
            raise
        except RuntimeError as error:
            # Nobody can tell whether the others still reach the store: a rank that went on alone might train otherwise.
            reason = str(error).split("\n", 1)[0]
            raise StoreFailedError(
                f"the process group's store does not answer ({reason}), so ranks cannot agree on this model. Its host"
                " (torchrun's agent, or rank 0) has exited or is unreachable. Plain torch needs no store here:"
                " DDPFIX=0 on every rank turns ddpfix off."
            ) from error
    if store is not None:
        remember(store, f"seed/{members.name}", seed)
    return seed


def agreed(name: str) -> Optional[int]:
    """Return the seed on which a group has agreed first (:func:`meet`), or None."""
    store = stores.passing_store()
    return None if store is None else remembered(store, f"seed/{name}")


class _Rendezvous:
    def __init__(self, store: Any, members: Members, facts: Mapping[str, str], limit: float) -> None:
        self.ranks, self.rank, self.limit = members.ranks, members.rank, limit
        # The count tells the meetings of one group apart; its members hold them in the same order.
        self.keys = keys(store, f"meet/{members.name}/{count(store, f'meet/{members.name}')}")
        self.ended_ranks = keys(store, ENDED)
        # In a store of the program's own nothing stays, and nobody says that it has ended.
        self.passes = stores.is_programs()
        self.store, self.facts = store, dict(facts)
        # Ranks that are known to have ddpfix: nobody is asked for again, while rank 0 waits for the last of thousands.
        self._known: Set[int] = set()
        # The message for the case in which a rank that is waited for has ended; empty: none has.
        self.end_message = ""

    def hold(self, seed: int) -> int:
        """Return the seed of the first rank; see :func:`meet`."""
        try:
            return self._held(seed)
        except AgreementError:
            # The first rank may hold the store, which ends with it: the others would see a broken connection.
            with contextlib.suppress(Exception):
                self._end_together()
            raise

    def _end_together(self) -> None:
        self.keys.add("seen", 1)
        if self.rank == self.ranks[0]:
            some = not self.passes and bool(self.ended_ranks.add(ANY, 0))
            coming = [rank for rank in self.ranks if not (some and self.ended_ranks.add(str(rank), 0))]
            # Who has come to this meeting has ddpfix.
            away = set(self._not_here())
            expected = len(coming) - len(self._missing([rank for rank in coming if rank in away]))
            look_until(lambda: self.keys.add("seen", 0) >= expected, lambda waited: waited > _LINGER, (0.02, 0.02))

    def _held(self, seed: int) -> int:
        put(self.keys, str(self.rank), System.json({"facts": self.facts, "seed": seed}))
        first = self._wait(self.ranks[0])
        difference = self._difference(first["facts"])
        if difference:
            self._conclude(difference)
        elif self.keys.add(_COUNT, 1) == len(self.ranks):
            self._conclude("ok")
        verdict = self._verdict()
        if verdict != "ok":
            raise AgreementError(verdict)
        if self.passes and self.keys.add(_READ, 1) == len(self.ranks):
            stores.delete(self.keys, [*map(str, self.ranks), _COUNT, _VERDICT, _READ])
        return int(first["seed"])

    def _difference(self, theirs: Mapping[str, str]) -> Optional[str]:
        names = [name for name, fact in self.facts.items() if theirs.get(name, fact) != fact]
        if not names:
            return None
        # Which fixes are applied follows from a release and from settings.
        names = [name for name in names if name == "ddpfix" or name.startswith("DDPFIX_")] or names
        parts = (f"{n} is {self.facts[n]!r}, on rank {self.ranks[0]} it is {theirs[n]!r}" for n in names)
        return (
            f"ddpfix differs between ranks. On rank {self.rank} {'; '.join(parts)}. "
            "Give every rank the same environment, or set DDPFIX=0 on all of them."
        )

    def _conclude(self, verdict: str) -> None:
        # Several ranks may differ: the verdict of the first one counts, the others would only replace it.
        if verdict == "ok" or self.keys.add("faults", 1) == 1:
            put(self.keys, _VERDICT, verdict)

    def _wait(self, rank: int) -> Dict[str, Any]:
        if not self._poll(str(rank), lambda: self._missing([rank]), lambda: [rank]):
            raise AgreementError(self.end_message or self._absent([rank]))
        return dict(System.loads(self.keys.get(str(rank))))

    def _verdict(self) -> str:
        # Only the group's first rank looks at every rank, when the time is up; the others wait for its verdict.
        is_first = self.rank == self.ranks[0]
        if is_first:
            arrived = self._poll(_VERDICT, lambda: self._missing(self._not_here()), self._not_here)
        else:
            arrived = self._poll(_VERDICT, list, lambda: self.ranks[:1], 1.5)
        if not arrived and is_first:
            self._conclude(self.end_message or self._absent(self._missing(self._not_here())))
        elif not arrived:
            message = f"rank {self.ranks[0]} did not answer within the time limit; see its own message"
            raise AgreementError(self.end_message or message)
        return bytes(self.keys.get(_VERDICT)).decode()

    def _not_here(self) -> List[int]:
        return [int(name) for name in stores.absent(self.keys, [str(rank) for rank in self.ranks])]

    def _missing(self, ranks: List[int]) -> List[int]:
        """Return the members of ``ranks`` that left no mark for this group: they run without ddpfix."""
        self._known.update(rank for rank in ranks if rank not in self._known and is_here(self.store, rank))
        return [rank for rank in ranks if rank not in self._known]

    def _absent(self, ranks: List[int]) -> str:
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        return (
            f"ddpfix is active on rank {self.rank} but not on rank {shown} (waited {self.limit:g} s, DDPFIX_TIMEOUT). "
            "They would train different models. Install ddpfix and set DDPFIX=1 on every rank, or set DDPFIX=0 on all."
        )

    def _poll(
        self, key: str, missing: Callable[[], List[int]], awaited: Callable[[], List[int]], stretch: float = 1.0
    ) -> bool:
        """Wait for a key. Past the limit it goes on as long as no rank is missing: they are only late.

        Args:
            missing: gives the ranks without ddpfix; called past the limit.
            awaited: gives the ranks on which it depends.
        """
        limit, last = self.limit * stretch, _patience()

        def give_up(waited: float) -> bool:
            if waited > last or (waited > limit and missing()):
                return True
            return waited > _LONG and self._has_ended(awaited)

        line = "waiting for ranks that have ddpfix but have not wrapped this model yet"
        pauses = stores.pauses(*_PAUSE, len(self.ranks))
        return look_until(lambda: has(self.keys, key), give_up, pauses, limit, line)

    def _has_ended(self, awaited: Callable[[], List[int]]) -> bool:
        """Return whether an awaited rank has ended with an error; one read of the store as long as none has."""
        if self.passes or not self.ended_ranks.add(ANY, 0):
            return False
        ended = [rank for rank in awaited() if self.ended_ranks.add(str(rank), 0)]
        if ended:
            where = f"rank {ended[0]} ended with an error before this model was wrapped there"
            self.end_message = f"{where}; its own message has the cause"
        return bool(ended)


def _patience() -> float:
    """Return how long a late rank is waited for: as long as torch itself waits in a collective, or longer."""
    from torch.distributed import distributed_c10d

    limit = getattr(distributed_c10d, "default_pg_timeout", timedelta(minutes=30))
    return max(float(limit.total_seconds()), limits.shortest() or 0.0)


# Ranks that have ended with an error: how many, and each under its number.
ENDED, ANY = "ended", "any"


def announce() -> None:
    """Leave a mark in the store that ddpfix is active on this rank; called when the process group has been initialized.

    Other ranks wait for a late rank that has left its mark, but not for one without a mark or one that ended with an
    error. In a store of the program's own there is no mark.
    """
    store = group_store()
    if store is not None:
        enter(store)


def announce_end() -> None:
    """Tell the ranks that may be waiting for this one that it ends with an error; nothing where it ends without."""
    if getattr(sys, "last_value", None) is None:
        return
    # The process that holds the store may have ended already, and then nobody can be told.
    with contextlib.suppress(Exception):
        from torch import distributed

        store = default_store()
        if store is not None:
            store = keys(store, ENDED)
            store.add(str(distributed.get_rank()), 1)
            store.add(ANY, 1)
