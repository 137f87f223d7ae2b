"""A store that counts what one rank sends and receives; all of ddpfix's own code is above it."""

from __future__ import annotations

from typing import Any, List, Set, Tuple

from torch import distributed


class Count:
    """The traffic of one rank with the store.

    A question that is sent again does not count: how many there are is a matter of time.

    Attributes:
        messages: that were sent.
        bytes: of the keys and values in both directions.
    """

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self._asked: Set[Tuple[Any, ...]] = set()

    def one(self, asks: bool, words: Tuple[Any, ...], answer: Any) -> Any:
        """Count one message and its answer."""
        if asks and words in self._asked:
            return answer
        if asks:
            self._asked.add(words)
        self.messages += 1
        self.bytes += _size(words[1:]) + _size(answer)
        return answer

    def __sub__(self, other: Count) -> Count:
        found = Count()
        found.messages, found.bytes = self.messages - other.messages, self.bytes - other.bytes
        return found

    def now(self) -> Count:
        """A copy of the numbers."""
        return self - Count()


def _size(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_size, value))
    return 8 if isinstance(value, (int, type(None))) else len(value)


class Counted(distributed.Store):  # type: ignore[misc]
    """One rank's client of the real store.

    Args:
        inner: a connection to the server.
        count: of the rank.
    """

    def __init__(self, inner: Any, count: Count) -> None:
        super().__init__()
        self.inner, self.count = inner, count
        # torch holds the C++ half of these only.
        self._clones: List[Counted] = []

    def set(self, key: str, value: Any) -> None:
        self.count.one(False, ("set", key, value), self.inner.set(key, value))

    def get(self, key: str) -> Any:
        return self.count.one(True, ("get", key), self.inner.get(key))

    def add(self, key: str, number: int) -> Any:
        return self.count.one(not number, ("add", key, number), self.inner.add(key, number))

    def check(self, keys: Any) -> Any:
        return self.count.one(True, ("check", *keys), self.inner.check(keys))

    def compare_set(self, key: str, expected: Any, wanted: Any) -> Any:
        answer = self.inner.compare_set(key, expected, wanted)
        return self.count.one(False, ("compare_set", key, expected, wanted), answer)

    def multi_get(self, keys: Any) -> Any:
        return self.count.one(True, ("multi_get", *keys), self.inner.multi_get(keys))

    def delete_key(self, key: str) -> Any:
        return self.count.one(False, ("delete", key), self.inner.delete_key(key))

    # The name under which torch asks a store that is written in Python.
    deleteKey = delete_key

    def clone(self) -> Counted:
        self._clones.append(Counted(self.inner.clone(), self.count))
        return self._clones[-1]
