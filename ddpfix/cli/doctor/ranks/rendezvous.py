"""Keys of the doctor in the job's store: who has come, what each rank is doing, and what it has found.

The store is the one that ``init_process_group`` would use (torch elastic's, or one that rank 0 keeps), but nobody waits
in it for all ranks: what ranks are missing is what this looks for. Each rank writes a few small keys; rank 0 alone
reads those of all.
"""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional

from ddpfix.cli.doctor.ranks.place import Place
from ddpfix.ranks.store.keys import has, look_until, put

# Seconds between two looks at the store.
_PAUSES = (0.001, 0.5)
_RECORD, _STAGE, _WORD = "record", "stage", "word"


class Rendezvous:
    """One connection to the store.

    Args:
        place: of this rank.
        limit: seconds to wait for the store.
        serve: whether this process keeps the store if its rank is to.

    Raises:
        Exception: torch's own, if the store cannot be reached; its class differs between releases.
    """

    def __init__(self, place: Place, limit: float, serve: bool = True) -> None:
        from torch import distributed

        self.place = place
        master = serve and place.rank == 0 and not place.agent
        # Not waiting for the other ranks, which torch's own rendezvous does.
        options: Dict[str, Any] = {"is_master": master, "timeout": timedelta(seconds=limit), "wait_for_workers": False}
        self.store = distributed.TCPStore(place.address, place.port, place.size, **options)
        self._keys = distributed.PrefixStore(f"ddpfix/doctor/{place.attempt}", self.store)

    def group_store(self) -> Any:
        """Return a store for a process group."""
        from torch import distributed

        return distributed.PrefixStore(f"ddpfix/doctor/{self.place.attempt}/group", self.store)

    def arrive(self, record: object) -> bool:
        """Say who this is; returns whether no other process has said that it is this rank."""
        is_first = int(self._keys.add(f"claim/{self.place.rank}", 1)) == 1
        if is_first:
            put(self._keys, f"{_RECORD}/{self.place.rank}", json.dumps(record))
            self._keys.add("arrived", 1)
        else:
            self._keys.add("twice", 1)
        return is_first

    def arrived(self) -> int:
        """Return how many ranks have come."""
        return int(self._keys.add("arrived", 0))

    def wait_for_all(self, limit: float) -> bool:
        """Wait until all ranks have come, or two are the same; returns whether all have come."""
        self._look(lambda: self.arrived() >= self.place.size or self.is_twice(), limit)
        return self.arrived() >= self.place.size

    def is_twice(self) -> bool:
        """Return whether two processes say that they are the same rank."""
        return bool(self._keys.add("twice", 0))

    def missing(self) -> List[int]:
        """Return the ranks that have not come."""
        return [rank for rank in range(self.place.size) if not has(self._keys, f"{_RECORD}/{rank}")]

    def records(self) -> Dict[int, Any]:
        """Return the records of the ranks that have come."""
        return self._all(_RECORD)

    def decide(self, backend: Optional[str]) -> None:
        """Tell the others that a group is made with this backend; None: that none is made."""
        put(self._keys, "verdict", json.dumps(backend))

    def verdict(self, limit: float) -> Optional[str]:
        """Return the backend of the group, or None.

        Raises:
            TimeoutError: rank 0 has decided nothing within the limit.
        """
        if not self._look(lambda: has(self._keys, "verdict"), limit):
            raise TimeoutError("rank 0 has decided nothing")
        found = json.loads(self._keys.get("verdict"))
        return str(found) if found is not None else None

    def speaks(self) -> bool:
        """Return whether this rank is the first one that wants to tell what the others need not tell as well."""
        return int(self._keys.add("speakers", 1)) == 1

    def begin(self, number: int, name: str) -> None:
        """Tell what this rank does now."""
        put(self._keys, f"{_STAGE}/{self.place.rank}", json.dumps([number, name]))

    def stages(self) -> Dict[int, Any]:
        """Return the stage of each rank, by number and name."""
        return self._all(_STAGE)

    def say(self, word: object) -> None:
        """Tell how it went on this rank."""
        put(self._keys, f"{_WORD}/{self.place.rank}", json.dumps(word))
        self._keys.add("words", 1)

    def words(self, limit: float) -> Dict[int, Any]:
        """Return how it went on each rank, as far as they have said it within the limit."""
        self._look(lambda: int(self._keys.add("words", 0)) >= self.place.size, limit)
        return self._all(_WORD)

    def end(self, limit: float) -> None:
        """Report to the others that all is done, and stay until they know: the store may end with this process."""
        put(self._keys, "end", "1")
        others = self.arrived() - 1
        self._look(lambda: int(self._keys.add("left", 0)) >= others, limit)

    def leave(self, limit: float) -> None:
        """Wait until all is reported."""
        with contextlib.suppress(Exception):
            # Where the store has ended, all is told as well.
            self._look(lambda: has(self._keys, "end"), limit)
            self._keys.add("left", 1)

    def _all(self, kind: str) -> Dict[int, Any]:
        here = (rank for rank in range(self.place.size) if has(self._keys, f"{kind}/{rank}"))
        return {rank: json.loads(self._keys.get(f"{kind}/{rank}")) for rank in here}

    def _look(self, found: Callable[[], bool], limit: float) -> bool:
        return look_until(found, lambda waited: waited > limit, _PAUSES)
