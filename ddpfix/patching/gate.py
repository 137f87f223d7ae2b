"""Has patches wait until the program does what they are for: most processes that import a toolkit never do it.

Some functions are those with which a program begins, as ``init_process_group`` is. Until undo each has a door around
it: its first call opens the gate, and the patches are put in place. Those of the function itself lie behind its door,
and so below the layers that other patchers have put on since.
"""

from __future__ import annotations

from typing import Any, Callable, ContextManager, List

from ddpfix import log
from ddpfix.modules import assign, contents
from ddpfix.patching import tracebacks
from ddpfix.patching.attribution import looks_like
from ddpfix.patching.layers import LOCK
from ddpfix.patching.site import Site


class _Door:
    """A door around a function; ``lead_to`` changes what its calls go on to."""

    def __init__(self, gate: Gate, owner: Any, attribute: str) -> None:
        self.owner, self.attribute = owner, attribute
        self.was = then = contents(owner)[attribute]
        in_class = isinstance(owner, type)

        def first(*args: Any, **kwargs: Any) -> Any:
            try:
                gate.pass_through()
                # A layer that somebody has put around a method may learn its instance only when it is bound.
                if in_class and args and args[0] is not None:
                    return then.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
                return then(*args, **kwargs)
            except BaseException as error:
                tracebacks.hide(error)
                raise

        # In a cell of the door, where undo finds it as it does in the wrappers of others.
        def lead_to(function: Any) -> None:
            nonlocal then
            then = function

        self.now, self.lead_to = looks_like(self.was, first), lead_to


class Gate:
    """The doors of one activation, and what happens when the first of them is called.

    Args:
        lock: is held while the gate opens.
        on_open: puts the patches in place that wait.
    """

    def __init__(self, lock: ContextManager[Any], on_open: Callable[[], None]) -> None:
        self._lock, self._on_open = lock, on_open
        self._doors: List[_Door] = []
        self._site = Site("gate")
        # Open from the moment when the first call comes; until all is in place, the calls of other threads wait.
        self.is_open = self._is_settled = False

    def put(self, owner: Any, attribute: str) -> None:
        """Put a door around a function of a module or a class; what is no function, or is inherited, gets none."""
        found = contents(owner).get(attribute)
        if callable(found) and not isinstance(found, (type, staticmethod, classmethod)):
            self._doors.append(_Door(self, owner, attribute))
            self._site.replace(owner, attribute, self._doors[-1].now)

    def open(self) -> None:
        """Put the patches in place behind the doors, once; nothing escapes but what ends the process."""
        with self._lock, LOCK:
            if self.is_open:
                return
            self.is_open = True
            tops = [contents(door.owner)[door.attribute] for door in self._doors]
            for door in self._doors:
                assign(door.owner, door.attribute, door.was)
            try:
                self._on_open()
            except Exception as error:
                log.warning(f"some fixes could not be applied: {error!r}")
            for door, top in zip(self._doors, tops):
                # Somebody may have taken the door away: then the layers stay where they are.
                if top is not door.was:
                    door.lead_to(contents(door.owner)[door.attribute])
                    assign(door.owner, door.attribute, top)
            self._is_settled = True

    def stay_open(self) -> None:
        """Nothing waits: the program had what the patches are for before there was a door."""
        self.is_open = self._is_settled = True

    def undo(self) -> List[str]:
        """Take the doors away, after the patches; returns a message for each that could not be."""
        self.stay_open()
        for door in self._doors:
            # Another patcher may keep the door for ever; then it does nothing.
            door.lead_to(door.was)
        return self._site.undo()

    def pass_through(self) -> None:
        """What a door does first: open the gate, or wait for the thread that does."""
        if not self._is_settled:
            self.open()
