"""The one count of training forwards: which step a model is in.

A step is a training forward: a forward with gradients enabled of a model in training mode (:func:`.ddp.trains`), also
under ``no_sync``. Failures, hangs, the comparison of replicas and loops of uneven length read it here.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable, List, Optional

from ddpfix import log, user_code
from ddpfix.patching.site import Site
from ddpfix.rules.facts import TrainingProgress

from ..internals import process_groups
from ..internals.wrapper import inner, joins, trains
from . import ddp
from .backward import Backwards
from .order import Shared

_JOINS = "DDPFIX_UNEVEN has no effect on {}, which trains inside join(): join() handles uneven data itself"
# So many forwards without a backward have their place recorded; a program with more of them means it so.
_PLACES = 8


class Clock:
    """The forwards of one model, which it outlives.

    Attributes:
        number: of the training forward that was begun last, from 1.
        local: how many training forwards were begun under ``no_sync``.
        local_place: the user's line of the first of these; ``local_file`` is the whole path.
    """

    def __init__(self, model: ddp.Wrapped, clocks: Clocks) -> None:
        self._wrapper, self._clocks = weakref.ref(model.wrapper), clocks
        ranks = process_groups.ranks_of(model.wrapper.process_group)
        self._is_of_all = 1 < len(ranks) == len(process_groups.ranks_of(None))
        self.number = 0
        self.local, self.local_place, self.local_file = 0, "", ""
        # Whether the last training forward ends in a reduction.
        self._reduced = True
        # The forwards that have prepared a reduction, and whether the one that was begun last does so when it ends.
        self._prepared, self._prepares = 0, False
        # Whether the last forward was one of training, the backwards of this process when it began, how many such
        # forwards had none, and where.
        self._trains, self._backwards, self._skipped, self._place = False, 0, 0, ""
        # Whether gradients of a forward that has prepared a reduction have not come; None where nobody knows.
        self.is_armed: Optional[Callable[[], bool]] = None

    @property
    def prepared(self) -> int:
        """How many forwards have ended that prepared a reduction, in whatever mode; between two forwards."""
        return self._prepared + self._prepares

    @property
    def is_local(self) -> bool:
        """Whether the last training forward was begun under ``no_sync``."""
        return not self._reduced

    def has_backward(self) -> bool:
        """Return whether a backward of this process has begun since the last forward has."""
        return self._backwards != self._clocks.backwards.count

    def begin(self) -> None:
        """A forward with gradients enabled begins."""
        wrapper = self._wrapper()
        if wrapper is None:
            return
        clocks = self._clocks
        count = clocks.backwards.count
        if self._trains and self._waits():
            self._skip()
        self._prepared += self._prepares
        self._backwards = count
        self._prepares = reduces = wrapper.require_backward_grad_sync
        self._trains = trains(wrapper)
        if not self._trains:
            return
        if not reduces:
            self._begin_local()
        self._reduced = reduces
        self.number += 1
        clocks.last = self
        if clocks.counts and reduces and self._is_of_all:
            if joins(wrapper):
                log.once(_JOINS.format(type(inner(wrapper)).__name__))
            else:
                clocks.begin()

    def _begin_local(self) -> None:
        """A training forward under no_sync begins."""
        self.local += 1
        if self.local == 1:
            self.local_place, self.local_file = user_code.place(sys._getframe(2))

    def failed(self, error: BaseException) -> None:
        """That forward has failed: it has prepared nothing."""
        self._prepares = self._trains = False

    def _waits(self) -> bool:
        """Return whether the last forward has had no backward, or none that has reached the model."""
        if not self.has_backward():
            return True
        return self._prepares and self.is_armed is not None and self.is_armed()

    def _skip(self) -> None:
        """The last training forward had no backward, and another one begins."""
        self._skipped += 1
        # A program that always calls two models in a row does not pay for the place.
        self._place = user_code.line(sys._getframe(2)) if self._skipped <= _PLACES else ""

    def work(self) -> TrainingProgress:
        """Return what this rank has done, by this model."""
        counted = self._clocks
        waits = self._trains and self._waits()
        missed = waits and self._backwards < counted.backwards.count
        return TrainingProgress(self.number, counted.backwards.count, self._skipped, self._place, waits, missed)


CLOCK: ddp.Slot[Clock] = ddp.Slot()


class Clocks:
    """The clocks of all models in one activation.

    Attributes:
        last: that of the model whose training forward was begun last.
        counts: whether forwards that end in a reduction over all ranks are counted for all models together.
        begun: how many of those have begun: each is one on all ranks. A model under ``join()`` does not count, since
            its program has ranks with different numbers of batches, and does something about it.
    """

    def __init__(self) -> None:
        self.last: Optional[Clock] = None
        self.counts, self.begun = False, 0
        # Of the activation, once somebody follows.
        self.backwards = Backwards()
        self._due: List[Callable[[], None]] = []
        self._shared: Shared[None] = Shared("torch.clock", ("failures", "divergence", "uneven"))

    def follow(self, site: Site, owner: Any, place: str) -> None:
        """Count until the patch is undone."""
        self.backwards = site.keep(Backwards)
        self._shared.join(site, place, None, functools.partial(self._put_on, owner))

    def _put_on(self, owner: Any, site: Site) -> None:
        ddp.put(site, owner, Counting(self))
        site.at_undo(self._stop)

    def _stop(self) -> None:
        self.last = None

    def step(self) -> Optional[int]:
        """Return the training forward that was begun last; None where no model is under DDP, or nothing counts."""
        return None if self.last is None else self.last.number

    def work(self) -> TrainingProgress:
        """Return what this rank has done, by the model whose forward was begun last."""
        return TrainingProgress() if self.last is None else self.last.work()

    def at_next(self, due: Callable[[], None]) -> None:
        """Call this when the next forward begins that ends in a reduction over all ranks."""
        self._due.append(due)

    def forget(self) -> None:
        """Count nothing over all ranks any more, and call nothing (undo)."""
        self.counts = False
        self._due.clear()

    def begin(self) -> None:
        """A forward that ends in a reduction over all ranks begins."""
        while self._due:
            self._due.pop()()
        self.begun += 1


class Counting(ddp.Stage):
    """Gives each model its clock."""

    place = "clock"

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        clock = CLOCK.put(model, Clock(model, self._clocks))
        model.attach(self.place, clock.begin, failed=clock.failed)

    def ended(self, model: ddp.Wrapped) -> None:
        CLOCK.clear(model)
