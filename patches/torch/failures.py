"""A rank that fails tells all ranks why, wherever there is a process group; :mod:`ddpfix.ranks.sentinel` has how."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, List, Optional

from ddpfix.patching.site import Site

from . import ddp
from .world import World

if TYPE_CHECKING:
    from ddpfix.ranks.sentinel import Sentinel

# At most one: of the default group.
_SENTINEL: List[Sentinel] = []


class Steps(ddp.Stage):
    """Counts the training forwards of each model under DDP."""

    place = "failures"

    def __init__(self) -> None:
        # Of the model whose forward was begun last.
        self.last: Optional[Counter] = None

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        model.attach(self.place, Counter(self, model).begin)

    def number(self) -> Optional[int]:
        """The training forward that was begun last; None where no model is under DDP."""
        return None if self.last is None else self.last.number


class Counter:
    """The training forwards of one model, which it outlives."""

    def __init__(self, steps: Steps, model: ddp.Wrapped) -> None:
        self._steps, self._wrapper, self.number = steps, weakref.ref(model.wrapper), 0
        # The forwards ahead of those whose gradients are summed now, and whether the last one has ended such a sum.
        self._before, self._reduced = 0, True

    def begin(self) -> None:
        """A forward of the model begins."""
        wrapper = self._wrapper()
        if wrapper is not None and wrapper.training:
            if self._reduced:
                self._before = self.number
            self._reduced = wrapper.require_backward_grad_sync
            self.number += 1
            self._steps.last = self

    def micro(self) -> int:
        """Which micro-batch of its step the last forward is; 0 where ``no_sync`` is not used."""
        number = self.number - self._before
        return 0 if self._reduced and number == 1 else number


_STEPS: List[Steps] = []


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in that counts steps."""
    steps = Steps()
    ddp.put(site, owner, steps)
    _STEPS[:] = [steps]
    site.at_undo(_STEPS.clear)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Begin when the process group comes up, or at once where it is up already."""
    site.at_undo(_forget)
    _WORLD.follow(site, module)


def group_end(site: Site, module: ModuleType, owner: Any) -> None:
    """A rank that leaves its process group says so, and is not taken for one that was killed."""
    _WORLD.follow_end(site, module)


def _make(store: Any, rank: int, size: int) -> None:
    # Not at the head of this file: a process without a group needs none of it.
    from ddpfix.ranks import exits
    from ddpfix.ranks.sentinel import Sentinel

    exits.watch()
    _SENTINEL.append(Sentinel(store, rank, size, step))
    _SENTINEL[0].start()


def step() -> Optional[int]:
    """The training forward that was begun last; None where no model is under DDP, or nothing counts them."""
    return _STEPS[0].number() if _STEPS else None


def micro() -> int:
    """Which micro-batch of its step that forward is; 0 where gradients are not accumulated."""
    last = _STEPS[0].last if _STEPS else None
    return 0 if last is None else last.micro()


def _leave() -> None:
    for sentinel in _SENTINEL:
        sentinel.leave()


def _end(how: str) -> None:
    while _SENTINEL:
        _SENTINEL.pop().end(how)


def _forget() -> None:
    exits: Any = sys.modules.get("ddpfix.ranks.exits")
    if exits is not None:
        exits.forget()


_WORLD = World(_make, _end, _leave)
