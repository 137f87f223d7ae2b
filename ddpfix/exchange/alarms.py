"""What ranks leave in the process group's store about one hang: an alarm, where each rank is, and what was found.

A job in which collectives begin writes nothing there, and reads one number now and then.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

from ddpfix.exchange.connection import Connection
from ddpfix.exchange.keys import absent, be_lowest, has, is_first, put, read
from ddpfix.rules.facts import Position
from ddpfix.rules.finding import Finding
from ddpfix.system import System


class HangReport(NamedTuple):
    """What was found, None where nothing was seen to be wrong, and the folder of the stacks."""

    found: Optional[Finding]
    folder: str


class Alarms:
    """One rank's view of it."""

    def __init__(self, connection: Connection, rank: int, size: int) -> None:
        self._store = connection.store
        self._rank, self._size = rank, size

    def alarm(self) -> int:
        """Return the number of the last alarm; 0 before the first one."""
        return int(self._store().add("alarm", 0))

    def raise_alarm(self, last: int) -> None:
        """Have all ranks tell where they are, unless another did so after ``last``, the last alarm known here."""
        if is_first(self._store(), f"raised/{last + 1}", self._rank):
            self._store().add("alarm", 1)

    def sign(self, alarm: int, position: Position) -> None:
        put(self._store(), f"sign/{alarm}/{self._rank}", System.json(position))
        be_lowest(self._store(), f"lowest/{alarm}", self._rank)
        self._store().add(f"signed/{alarm}", 1)

    def signed(self, alarm: int) -> int:
        """Return how many ranks have told where they are."""
        return int(self._store().add(f"signed/{alarm}", 0))

    def lowest(self, alarm: int) -> bool:
        """Return whether no rank below this one has told where it is; this one has."""
        return int(self._store().get(f"lowest/{alarm}")) == self._rank

    def positions(self, alarm: int) -> Dict[int, Position]:
        """Return the positions of the ranks."""
        store = self._store()
        names = {f"sign/{alarm}/{rank}": rank for rank in range(self._size)}
        for name in absent(store, list(names)):
            del names[name]
        return {rank: Position.load(System.loads(text)) for rank, text in zip(names.values(), read(store, list(names)))}

    def claims(self, alarm: int) -> bool:
        """Return whether this rank is the one that judges."""
        return is_first(self._store(), f"judge/{alarm}", self._rank)

    def report(self, alarm: int, told: HangReport) -> None:
        """What was found."""
        put(self._store(), f"report/{alarm}", System.json(told))

    def told(self, alarm: int) -> Optional[HangReport]:
        """Return the finding; None as long as no rank has published it."""
        store, key = self._store(), f"report/{alarm}"
        if not has(store, key):
            return None
        found, folder = System.loads(store.get(key))
        return HangReport(None if found is None else Finding(*found), folder)
