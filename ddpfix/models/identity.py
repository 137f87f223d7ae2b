"""What is known of objects of the program, by which object it is: they may be equal, or have no hash."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Dict, Generic, List, Optional, TypeVar

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """A dictionary that keeps none of its keys alive, and calls none of their methods.

    Attributes:
        found: the values by ``id``, for a place that has no time for a call of Python. An entry goes before its object
            does, so that no other object has this number meanwhile.
    """

    def __init__(self) -> None:
        self.found: Dict[int, T] = {}
        self._alive: Dict[int, weakref.ref[Any]] = {}

    def get(self, key: Any) -> Optional[T]:
        return self.found.get(id(key))

    def __getitem__(self, key: Any) -> T:
        return self.found[id(key)]

    def __setitem__(self, key: Any, value: T) -> None:
        number = id(key)
        if number not in self._alive:
            self._alive[number] = weakref.ref(key, functools.partial(_gone, number, self.found, self._alive))
        self.found[number] = value

    def __contains__(self, key: Any) -> bool:
        return id(key) in self.found

    def __len__(self) -> int:
        return len(self.found)

    def pop(self, key: Any) -> Optional[T]:
        self._alive.pop(id(key), None)
        return self.found.pop(id(key), None)

    def values(self) -> List[T]:
        return list(self.found.values())

    def clear(self) -> None:
        self.found.clear()
        self._alive.clear()


def _gone(number: int, *tables: Dict[int, Any]) -> None:
    # The last argument of a call is the reference, which is no table.
    for table in tables[:2]:
        table.pop(number, None)
