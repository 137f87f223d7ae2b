"""A wrapper of torch that several patches share: the first one puts it on, and it is taken off with the last."""

from __future__ import annotations

from typing import Callable, Dict, Generic, List, Optional, Tuple, TypeVar

from ddpfix.patching.site import PatchError, Site

T = TypeVar("T")


class Shared(Generic[T]):
    """The subscribers of one wrapper, whose places have a written order."""

    def __init__(self, name: str, order: Tuple[str, ...]) -> None:
        self._name, self._order = name, order
        self._at: Dict[str, T] = {}
        self._own: Optional[Site] = None
        # In the written order; a new tuple after each change, so that a loop over it may change it.
        self.subscribers: Tuple[T, ...] = ()

    def join(self, site: Site, place: str, subscriber: T, put_on: Callable[[Site], None]) -> None:
        """Subscribe until undo; a wrapper that ``put_on`` fails to put on leaves nothing. PatchError: no such place."""
        if place not in self._order or place in self._at:
            why = (
                "taken" if place in self._at else f"none of {', '.join(self._order)} (patches/torch/pipeline/order.py)"
            )
            raise PatchError(f"the place {place} of {self._name} is {why}")
        if self._own is None:
            own = Site(self._name, site.settings, site.activation)
            try:
                put_on(own)
            except Exception:
                own.undo()
                raise
            self._own = own
        site.parts.append(self._own)
        self._at[place] = subscriber
        self._arrange()
        site.at_undo(lambda: self._leave(place))

    def _leave(self, place: str) -> List[str]:
        del self._at[place]
        self._arrange()
        own = self._own
        if self._at or own is None:
            return []
        self._own = None
        return own.undo()

    def _arrange(self) -> None:
        self.subscribers = tuple(self._at[place] for place in self._order if place in self._at)
