"""Notes about an object of a toolkit that must not get attributes of ddpfix's."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Generic, Optional, Tuple, TypeVar

T = TypeVar("T")


class Notes(Generic[T]):
    """A note by object.

    By identity: accelerate's handlers are dataclasses that compare by value, and every attribute of a handler is passed
    on to torch.
    """

    def __init__(self) -> None:
        self._notes: Dict[int, Tuple[Any, T]] = {}

    def put(self, about: object, note: T) -> None:
        """Keep a note for as long as the object lives."""
        number = id(about)
        self._notes[number] = (weakref.ref(about, lambda _: self._notes.pop(number, None)), note)

    def of(self, about: Optional[object]) -> Optional[T]:
        """Return the note on an object; None where there is none."""
        reference, note = self._notes.get(id(about), (lambda: None, None))
        return note if about is not None and reference() is about else None
