"""A rank that fails tells all ranks why, wherever there is a process group; :mod:`.failures.sentinel` has how."""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ddpfix.patching.site import Site

from ..pipeline import ddp
from ..pipeline.process_group import ProcessGroup
from .world import Beside

if TYPE_CHECKING:
    from ddpfix.ranks.failures.sentinel import Sentinel


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
        if wrapper is not None and ddp.trains(wrapper):
            if self._reduced:
                self._before = self.number
            self._reduced = wrapper.require_backward_grad_sync
            self.number += 1
            self._steps.last = self

    def micro(self) -> int:
        """Which micro-batch of its step the last forward is; 0 where ``no_sync`` is not used."""
        number = self.number - self._before
        return 0 if self._reduced and number == 1 else number


class Failing:
    """What counts the steps of one activation, and tells the other ranks of a failure.

    Attributes:
        steps: counts the training forwards; None where nothing does.
    """

    def __init__(self) -> None:
        self.steps: Optional[Steps] = None

    def step(self) -> Optional[int]:
        """The training forward that was begun last; None where no model is under DDP, or nothing counts them."""
        return None if self.steps is None else self.steps.number()

    def micro(self) -> int:
        """Which micro-batch of its step that forward is; 0 where gradients are not accumulated."""
        last = None if self.steps is None else self.steps.last
        return 0 if last is None else last.micro()

    def count(self, steps: Optional[Steps]) -> None:
        """Count with these from here on; with nothing if None."""
        self.steps = steps


class Reporter(Beside):
    """Tells the other ranks why this one fails, and this one why another one did.

    Args:
        step: gives the number of the training forward that was begun last.
    """

    place = "failures"

    def __init__(self, step: Callable[[], Optional[int]]) -> None:
        self._step = step
        self._sentinel: Optional[Sentinel] = None

    def make(self, store: Any, rank: int, size: int) -> None:
        # Not at the head of this file: a process without a group needs none of it.
        from ddpfix.ranks.failures import exits
        from ddpfix.ranks.failures.sentinel import Sentinel

        exits.watch()
        self._sentinel = Sentinel(store, rank, size, self._step)

    def exits(self) -> None:
        if self._sentinel is not None:
            self._sentinel.leave()

    def end(self, how: str) -> None:
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.end(how)
            _forget()

    def undone(self) -> None:
        super().undone()
        _forget()


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in that counts steps."""
    failing, steps = site.keep(Failing), Steps()
    ddp.put(site, owner, steps)
    failing.count(steps)
    site.at_undo(functools.partial(failing.count, None))


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Begin when the process group comes up, or at once where it is up already."""
    site.keep(ProcessGroup).follow(site, module, Reporter(site.keep(Failing).step))


def _forget() -> None:
    exits: Any = sys.modules.get("ddpfix.ranks.failures.exits")
    if exits is not None:
        exits.forget()
