"""Lists of what patches have registered for later."""

from __future__ import annotations

from typing import List, TypeVar

T = TypeVar("T")


class Registry(List[T]):
    """Entries that are used later, in the order in which they were registered.

    Attributes:
        at: where its entries are used, written like a target of the matrix, or in words.
    """

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        # Several patches may register one item: it goes with the last of them.
        self._holders: List[T] = []

    def hold(self, item: T) -> None:
        """Put an item in, unless it is there, once more."""
        self._holders.append(item)
        if item not in self:
            self.append(item)

    def release(self, item: T) -> None:
        """Take an item out that was held as often as this."""
        if item in self._holders:
            self._holders.remove(item)
        if item not in self._holders and item in self:
            self.remove(item)
