"""One optimizer's part of one model, which ranks compare; :mod:`.divergence` says when, and what is left out."""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import Any, Iterator, Optional, Tuple

import torch

from ddpfix import log
from ddpfix.exchange.keys import default_store
from ddpfix.system import System

from ..pipeline import ddp, optimizers
from ..unused.states import REDUCTION
from . import fingerprint
from .exchange import Counts, SnapshotExchange

# Seconds for which a rank waits before it ends with an error, so that the others come to theirs.
_LINGER = 1.0
# More optimizers of one model than these are one for each parameter or layer, and are not looked at.
_OPTIMIZERS = 8
# The share of a run's time that looking may take: where a look takes longer, fewer steps are looked at.
_SHARE = 0.001
# A run may be short: its steps 1, 2, 4 and 8 are looked at, whatever that takes.
_FIRST = 8


class DivergenceError(RuntimeError):
    """The replicas of a model differ (``DDPFIX_DIVERGENCE=error``). The message has rank, step and place."""


class Comparison:
    """One optimizer's part of one model, with ``every`` optimizer steps at least between two looks."""

    def __init__(self, model: ddp.Wrapped, counts: Counts, mode: str, every: int) -> None:
        self.model, self._counts = weakref.ref(model), counts
        self._mode, self._every = mode, every
        # Made with the first look, which gives it its number among those of the model.
        self.seen: Optional[SnapshotExchange] = None
        self._over = False
        # Steps that count, the forwards that were done in the last of them, and the next one after which to look.
        self._steps, self._forwards, self._next = 0, 0, 1
        # What the step that was the last one has left, until the next one begins.
        self._look: Optional[fingerprint.PendingSnapshot] = None
        self._pace = ComparisonInterval(every)
        # Training forwards begun by the last step, and steps since the last look whose gradients were not averaged.
        self._forwards_begun = self._local = 0

    def counts(self) -> bool:
        """Count a step of the optimizer, which has not raised; return whether it counts."""
        forwards = self._counts.forwards
        if self._over or self._forwards == forwards:
            self._count_local()
            return False
        self._forwards_begun = self._counts.clock.number
        self._steps, self._forwards = self._steps + 1, forwards
        return True

    def _count_local(self) -> None:
        """Count a step of the optimizer for which no reduction was prepared, if there was a forward for it."""
        number = self._counts.clock.number
        if number != self._forwards_begun:
            self._forwards_begun = number
            self._local += 1

    def is_next(self) -> bool:
        """Return whether replicas are to be compared after this step."""
        return self._steps == self._next

    def look(self, optimizer: Any) -> None:
        """Read what the step has left, or after the usual pause where nothing may be read here."""
        if optimizers.is_hidden() or not optimizers.is_torchs(optimizer):
            self._next += self._every
            return
        try:
            with self._pace.timed():
                self._take(optimizer)
        except Exception as error:
            self._give_up(error)

    def _take(self, optimizer: Any) -> None:
        model = self.model()
        if model is None or default_store() is None or not optimizers.replicated(model):
            self._over = True
            return
        if self.seen is None:
            self.seen = SnapshotExchange(model, self._counts, isinstance(optimizer, torch.optim.LBFGS))
            self._over = self._counts.watches > _OPTIMIZERS
        compared = fingerprint.compared(model, optimizer)
        reduction = REDUCTION.of(model)
        averaged = None if reduction is None or reduction.within is not None else reduction.reductions
        self._look = fingerprint.PendingSnapshot(self._steps, self._forwards, compared, optimizer, averaged)

    def step_begins(self) -> None:
        """Called before each step, for what is due after the one before; DivergenceError where that is the mode."""
        if self._over:
            return
        try:
            with self._pace.timed():
                found = self._turn()
        except Exception as error:
            self._give_up(error)
            return
        if found:
            self._over = True
            self._tell(found)

    def _give_up(self, error: Exception) -> None:
        self._over = True
        log.debug(f"replicas are no longer compared: {error!r}")

    def is_due(self) -> bool:
        """Return whether something is to be done before the next step."""
        if self._look is not None or self.seen is None:
            return self._look is not None
        since = self._steps - self.seen.looks[-1]
        return len(self.seen.looks) > 1 and not since & (since - 1)

    def _turn(self) -> str:
        """Do what is due after this step; return the difference that was found."""
        model, store, seen = self.model(), default_store(), self.seen
        if model is None or store is None or seen is None or not optimizers.replicated(model):
            self._over = True
            return ""
        own = seen.own(store)
        # In mode error all ranks end in the same step of one optimizer; else it is a matter of the model, whose
        # optimizers may live too short a time to hear of it (a program that makes a new one now and then).
        shared = own if self._mode == "error" else seen.models(store)
        if self._look is not None:
            self._end_look(self._look, seen, own)
        found = seen.compare(own, shared, self._steps)
        if self._steps < seen.following:
            # The first rank gives the pace, by its own times.
            self._next = seen.following
        if self._mode == "error":
            # When all know of it, to end together.
            return seen.told(shared, self._steps)
        return found or seen.told(shared)

    def _end_look(self, look: fingerprint.PendingSnapshot, seen: SnapshotExchange, own: Any) -> None:
        here, self._look = look.finish(), None
        if here is None:
            # The program moves its parameters itself.
            self._over = True
            return
        self._next = self._steps + self._pace.steps(self._steps)
        seen.add(own, here, look.names, self._local, self._next)
        self._local = 0

    def kept(self) -> Optional[SnapshotExchange]:
        """Return what is to be compared when the process group ends, if it is known of the model by then."""
        return None if self._over else self.seen

    def _tell(self, line: str) -> None:
        if self._mode == "error":
            # A rank that ends at once closes connections on which others are still in the collective before this.
            System.pause(_LINGER)
            raise DivergenceError(f"ddpfix: {line}")
        self._counts.report(line)


class ComparisonInterval:
    """How often to look, so that looking takes at most a small share of the run."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._begun: Tuple[int, float] = (0, System.perf_counter())
        # Seconds that were spent since then, without those of the block that is open, and when that began.
        self._spent, self._since = 0.0, 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time in here as spent: to look, to publish, and to compare."""
        self._since = System.perf_counter()
        yield
        self._spent += System.perf_counter() - self._since

    def steps(self, done: int) -> int:
        """After how many steps to look again; called within :meth:`timed`."""
        (before, begun), now = self._begun, System.perf_counter()
        spent = self._spent + now - self._since
        self._begun, self._since, self._spent = (done, now), now, 0.0
        step = (now - begun - spent) / max(1, done - before)
        if done < _FIRST:
            return min(done, self._every)
        return max(self._every, math.ceil(spent / (_SHARE * max(step, 1e-6))))
