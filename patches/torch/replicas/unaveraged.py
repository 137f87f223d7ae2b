"""Models whose optimizer steps all use gradients that DDP has not averaged, so that each rank trains its own.

The job ends well, and nothing in torch says so: each forward runs under ``no_sync`` (accelerate's ``accumulate`` within
another one), ``require_backward_grad_sync`` is set after the forward that reads it, or a backward runs within the
forward of a static graph. Local SGD looks the same for a while: its program averages parameters now and then. So
nothing is said before DDPFIX_DIVERGENCE optimizer steps, or the end of the run, and only where no step was covered by
a reduction, parameters and gradients of ranks differ after the first one, and only optimizers have moved parameters
since: a program that averages by itself, gradients or parameters, is quiet from then on.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any, Callable, List, Optional, Tuple

import torch

from ddpfix import log, user_code
from ddpfix.exchange.keys import default_store, has, keys, put
from ddpfix.rules import replicas
from ddpfix.system import System

from ..internals import process_groups
from ..internals.wrapper import inner
from ..pipeline import ddp, optimizers
from ..pipeline.step_count import Clock
from . import fingerprint

# Steps before the end of a run after which a model is spoken of at all.
FEW = 3
# The attributes by which a program has its forwards stay on their rank.
_SET_BY = ("require_backward_grad_sync", "accumulate")
# Elements of a parameter that show whether the program moves it.
_SAMPLES = 4


class UnreducedModel:
    """One model of which no optimizer step was covered by a reduction yet."""

    def __init__(self, model: ddp.Wrapped, clock: Clock) -> None:
        self.model, self._clock = weakref.ref(model), clock
        # Called while the parameters are still there: the model of a program's main() is gone when the process ends.
        self._wrapper = ddp.until_destroyed(model.wrapper, self._ended)
        self.steps, self.number, self._class = 0, model.number, type(inner(model.wrapper)).__name__
        self._ranks = process_groups.ranks_of(model.wrapper.process_group)
        self._forwards = 0
        # The training forward that has ended last, the collectives of the group by then (None if they are not counted),
        # and the user's line where a backward ran in it.
        self._ended_forward, self._collectives, self._inside = 0, self._count(), ""
        # The optimizer that trains it, and some elements after its last step.
        self._optimizer: Any = None
        self._ends: List[weakref.ref[Any]] = []
        self._samples: Optional[List[Any]] = None
        # Whether the program has moved them between two steps, each on its device.
        self._moved: Optional[List[Any]] = None
        # After the first step: what this rank has, until the first rank's digest is there; and what differs.
        self._look: Optional[fingerprint.PendingSnapshot] = None
        self._here: Optional[replicas.Snapshot] = None
        self._names: List[str] = []
        self._differs: List[str] = []

    def is_settled(self, action: Callable[[Any], bool], optimizer: Any) -> bool:
        """Return whether nothing is to be said of this model, also by :meth:`begins` or :meth:`stepped`."""
        try:
            return self.is_left_out() or action(optimizer)
        except Exception as error:
            log.debug(f"cannot tell whether a model is averaged: {error!r}")
            return True

    def is_left_out(self) -> bool:
        """Return whether the model is none that DDP replicates, or was hardly trained before it went."""
        model = self.model()
        if model is None or model.wrapper is None:
            return self.steps < FEW
        return optimizers.is_alone(model) or not model.averages

    def forward_ended(self, output: Any) -> None:
        """Called after each forward with gradients enabled: what DDP averages of it is a collective from here on."""
        number = self._clock.number
        if number != self._ended_forward:
            self._ended_forward, self._collectives = number, self._count()
            self._inside = user_code.line(sys._getframe(1)) if self._clock.has_backward() else ""

    def _count(self) -> Optional[int]:
        model = self.model()
        with contextlib.suppress(Exception):
            return None if model is None else process_groups.collectives_of(model.wrapper.process_group)
        return None

    def begins(self, optimizer: Any) -> bool:
        """Called before an optimizer's step; returns whether nothing is to be said of this model."""
        if optimizer is not self._known() or self._samples is None or optimizers.is_hidden():
            return False
        self._see_whether_moved()
        return self._compare()

    def _ended(self) -> None:
        with contextlib.suppress(Exception):
            if self.steps and not optimizers.is_hidden():
                self._see_whether_moved()

    def _see_whether_moved(self) -> None:
        now = self._taken()
        if now is not None and self._samples is not None:
            moved = [(one != other).any() for one, other in zip(now, self._samples)]
            self._moved = [one | other for one, other in zip(moved, self._moved or moved)]

    def stepped(self, optimizer: Any) -> bool:
        """Called after an optimizer's step; returns whether nothing is to be said of this model."""
        model, forwards = self.model(), self._clock.number
        known = self._known()
        if model is None or forwards == self._forwards or optimizers.is_hidden():
            return False
        if not self._clock.is_local and (self._collectives is None or self._count() != self._collectives):
            # DDP may have averaged all gradients: the last forward was one that it reduces. A collective of another
            # model, or of the program, counts as well: then nothing is known, and nothing is said.
            return True
        if known is None:
            if not optimizers.is_torchs(optimizer) or model not in optimizers.trained(optimizer):
                return False
            self._optimizer = weakref.ref(optimizer)
            compared = fingerprint.compared(model, optimizer)
            self._ends = [weakref.ref(each) for each in [*compared.values()][:1] + [*compared.values()][-1:]]
            self._look = fingerprint.PendingSnapshot(1, 0, compared, optimizer)
        elif optimizer is not known:
            return False
        self._forwards = forwards
        self.steps += 1
        self._samples = self._taken()
        return False

    def _known(self) -> Any:
        return None if self._optimizer is None else self._optimizer()

    def _taken(self) -> Optional[List[Any]]:
        """Return some elements of the first and the last parameter that are trained; None if one was destroyed."""
        ends = [each for each in [reference() for reference in self._ends] if each is not None]
        if not ends or len(ends) < len(self._ends):
            return None
        with torch.no_grad():
            return [each.detach().reshape(-1)[:_SAMPLES].clone() for each in ends]

    def _compare(self) -> bool:
        """Compare the first step with the first rank's, when that is there; return whether ranks had the same."""
        store = default_store()
        if store is None:
            return True
        own = keys(store, f"unaveraged/{self.number}")
        if self._look is not None:
            self._here, self._names, self._look = self._look.finish(), self._look.names, None
            if self._here is None:
                return True
            if process_groups.own_rank() == self._ranks[0]:
                put(own, "sight", System.json(self._here))
                self._here = None
        elif self._here is not None and not self.steps & (self.steps - 1) and has(own, "sight"):
            there, here = replicas.Snapshot(*System.loads(own.get("sight"))), self._here
            self._here = None
            self._differs = [self._names[number] for number in replicas.unequal(there, here)]
            return not self._differs
        return False

    def line(self) -> str:
        """Return the line; "" where it is not certain, or for the first rank, with which the others compare."""
        if not self._differs:
            return ""
        self._see_whether_moved()
        if self._moved is None or any(map(bool, self._moved)):
            return ""
        return replicas.describe_unreduced(self._class, self.steps, self._ranks[0], *self._cause())

    def _cause(self) -> Tuple[str, str]:
        """Return why DDP has averaged nothing, as far as it is known of the last step, and the user's line."""
        clock = self._clock
        if not clock.is_local:
            return "backward" if self._inside else "", self._inside
        for attribute in _SET_BY:
            place = user_code.nearest(clock.local_file, attribute, clock.local_place)
            if place:
                return attribute, place
        return "no_sync", clock.local_place
