"""One optimizer's part of one model, which this rank compares with what the first rank of the model's group saw.

:mod:`.divergence` says when, and what is left out. A comparison keeps no model alive: what was not compared before the
model went is compared when the process group ends.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional

from ddpfix import log
from ddpfix.exchange.keys import default_store, delete, has, keys, put
from ddpfix.rules import replicas
from ddpfix.system import System

from ..internals import process_groups
from ..internals.wrapper import inner
from ..pipeline import ddp, optimizers
from ..pipeline.step_count import Clock
from ..unused.states import REDUCTION
from . import fingerprint

# More optimizers of one model than these are one for each parameter or layer, and are not looked at.
_OPTIMIZERS = 8
# A run may be short: its steps 1, 2, 4 and 8 are looked at. Before the last of them a difference is told when the next
# look has it, too: a program may set its replicas apart for a few steps.
_EARLY = 8
# Looks that the store keeps, for ranks that come later.
_KEPT = 4


# Seconds for which a rank waits before it ends with an error, so that the others come to theirs.
_LINGER = 1.0


class DivergenceError(RuntimeError):
    """The replicas of a model differ (``DDPFIX_DIVERGENCE=error``). The message has rank, step and place."""


class Counts:
    """What all optimizers of one model have in common, and whether it was said that its replicas differ."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.watches = 0
        self.reported = False

    def report(self, line: str) -> None:
        """Log a difference once a model: a program may make a new optimizer for each of its steps."""
        if not self.reported:
            self.reported = True
            log.on_every_rank(line)


class Comparison:
    """One optimizer's part of one model.

    Args:
        every: optimizer steps between two looks.
        is_error: whether a difference is an error, in the same step of this optimizer on all ranks.

    Attributes:
        unsure: a difference that is told when the next look has one as well, or when the run ends.
    """

    def __init__(self, model: ddp.Wrapped, counts: Counts, every: int, is_error: bool) -> None:
        self.model, self.counts, self._every, self._is_error = weakref.ref(model), counts, every, is_error
        self._class = type(inner(model.wrapper)).__name__
        self._ranks = process_groups.ranks_of(model.wrapper.process_group)
        self._is_first = process_groups.own_rank() == self._ranks[0]
        # Keys in the store: of what ranks have found, which is a matter of the model, as its optimizers may live too
        # short to hear of it; and of this optimizer's part, which has a number from its first look on.
        self._shared, self._own = f"drift/{model.number}", ""
        self._over = False
        # Steps that count, the forwards that were done in the last of them, and the next one after which to look.
        self._steps, self._forwards, self._next = 0, 0, 1
        # Training forwards begun by the last step, and steps since the last look whose gradients were not averaged.
        self._forwards_begun = self._local = 0
        # What the step that was the last one has left, until the next one begins.
        self._look: Optional[fingerprint.PendingSnapshot] = None
        # The steps after which this rank has looked (0: the beginning), and of each how many steps without an average
        # were before it, and what it saw and has not compared yet.
        self._looks: List[int] = [0]
        self._before: Dict[int, int] = {}
        self._waiting: Dict[int, replicas.Snapshot] = {}
        self._names: List[str] = []
        self.unsure = ""

    def stepped(self, optimizer: Any) -> bool:
        """Count a step of the optimizer, which has not raised; return whether something is due before its next one."""
        clock = self.counts.clock
        counts, trained = not self._over and self._forwards != clock.prepared, self._forwards_begun != clock.number
        self._forwards_begun = clock.number
        if not counts:
            # No reduction was prepared for it.
            self._local += trained
            return False
        self._steps, self._forwards = self._steps + 1, clock.prepared
        if self._steps == self._next:
            if optimizers.is_hidden() or not optimizers.is_torchs(optimizer):
                self._next += self._every
            else:
                try:
                    self._begin_look(optimizer)
                except Exception as error:
                    self._give_up(error)
        since = self._steps - self._looks[-1]
        return self._look is not None or (len(self._looks) > 1 and not since & (since - 1))

    def _begin_look(self, optimizer: Any) -> None:
        model = self.model()
        self._over = model is None or default_store() is None or not optimizers.replicated(model)
        if model is None or self._over:
            return
        if not self._own:
            self._own = f"{self._shared}/{self.counts.watches}"
            self._shared = self._own if self._is_error else self._shared
            self.counts.watches += 1
            self._over = self.counts.watches > _OPTIMIZERS
        compared = fingerprint.compared(model, optimizer)
        reduction = REDUCTION.of(model)
        averaged = None if reduction is None or reduction.within is not None else reduction.reductions
        self._look = fingerprint.PendingSnapshot(self._steps, self._forwards, compared, optimizer, averaged)

    def step_begins(self) -> None:
        """Do what is due after the step before, and say what differs."""
        if self._over:
            return
        try:
            line = self._turn()
        except Exception as error:
            self._give_up(error)
            return
        if line:
            self._over = True
            if self._is_error:
                # A rank that ends at once closes connections on which others are still in the collective before this.
                System.pause(_LINGER)
                raise DivergenceError(f"ddpfix: {line}")
            self.counts.report(line)

    def _turn(self) -> str:
        model, store = self.model(), default_store()
        if model is None or store is None or not optimizers.replicated(model):
            self._over = True
            return ""
        if self._look is not None:
            self._end_look(self._look, store)
        found = self.compare(store)
        # An error comes when all ranks know of it.
        return self.told(store, self._steps) if self._is_error else found or self.told(store)

    def _give_up(self, error: Exception) -> None:
        self._over = True
        log.debug(f"replicas are no longer compared: {error!r}")

    def _end_look(self, look: fingerprint.PendingSnapshot, store: Any) -> None:
        """Keep what a step has left, or leave it for the others; drop what is old."""
        here, self._look = look.finish(), None
        if here is None:
            # The program moves its parameters itself.
            self._over = True
            return
        self._next = here.step + (min(here.step, self._every) if here.step < _EARLY else self._every)
        self._names, own = look.names, keys(store, self._own)
        if self._is_first:
            put(own, f"sight/{here.step}", System.json(here))
            put(own, f"digest/{here.step}", fingerprint.digest(here))
        else:
            self._waiting[here.step] = here
        self._before[here.step], self._local = self._local, 0
        self._looks.append(here.step)
        while len(self._looks) > _KEPT:
            old = self._looks.pop(0)
            self._waiting.pop(old, None)
            self._before.pop(old, None)
            if old and self._is_first:
                delete(own, [f"sight/{old}", f"digest/{old}"])

    def is_waiting(self) -> bool:
        """Return whether something was not compared yet, or not told."""
        return bool(self._waiting or self.unsure)

    def is_open(self) -> bool:
        """Return whether the last comparison has work here: the first rank learns of a difference from others."""
        return self._is_first or self.is_waiting()

    def compare(self, store: Any) -> str:
        """Return a difference from the first rank in a look that the store has of both; "" where there is none."""
        own, shared = keys(store, self._own), keys(store, self._shared)
        for step, here in list(self._waiting.items()):
            if not has(own, f"digest/{step}"):
                continue
            del self._waiting[step]
            is_same = own.get(f"digest/{step}").decode() == fingerprint.digest(here)
            found = "" if is_same else self._described(replicas.Snapshot(*System.loads(own.get(f"sight/{step}"))), here)
            if not found or (step < _EARLY and not self.unsure):
                self.unsure = found
                continue
            found = self.unsure or found
            if shared.add("differ", 1) == 1:
                put(shared, "found", f"{self._steps} {found}")
            return found
        return ""

    def told(self, store: Any, steps: Optional[int] = None) -> str:
        """Return the difference that a rank has found; "" where none has, or not before so many steps of this rank."""
        shared = keys(store, self._shared)
        step, _, text = shared.get("found").decode().partition(" ") if has(shared, "found") else ("0", "", "")
        return text if steps is None or steps > int(step) else ""

    def _described(self, there: replicas.Snapshot, here: replicas.Snapshot) -> str:
        before = self._looks[self._looks.index(here.step) - 1]
        where = replicas.Where(process_groups.own_rank(), self._ranks[0], self._class, before, here.step)
        found = replicas.difference(there, here)
        if found is not None and found.numbers:
            cause = replicas.local_steps(self._before.get(here.step, 0), self.counts.clock.local_place)
            names = [self._names[number] for number in found.numbers]
            return replicas.describe_divergence(where, found, names, len(self._names), cause)
        if replicas.has_averaged_apart(there, here):
            names = [self._names[number] for number in replicas.unequal(there, here)]
            return replicas.describe_averages(where, names, len(self._names), (here.averaged, there.averaged))
        return ""
