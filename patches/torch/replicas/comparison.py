"""One optimizer's part of one model, which ranks compare; :mod:`.divergence` says when, and what is left out."""

from __future__ import annotations

import time
import weakref
from typing import Any, Dict, List, Optional

import torch

from ddpfix import log
from ddpfix.ranks.store.keys import default_store, has, keys, put

from ..internals import process_groups
from ..pipeline import ddp, optimizers
from ..pipeline.step_count import Clock
from ..unused.states import REDUCTION
from . import fingerprint, text
from .interval import Pace

# Looks that the store keeps, for ranks that come later.
_KEPT = 4
# Seconds for which a rank waits before it ends with an error, so that the others come to theirs.
_LINGER = 1.0
# More optimizers of one model than these are one for each parameter or layer, and are not looked at.
_OPTIMIZERS = 8


class DriftError(RuntimeError):
    """The replicas of a model differ (``DDPFIX_DRIFT=error``). The message names the rank, the step and the place."""


class Counts:
    """What all optimizers of one model have in common.

    Args:
        clock: counts the forwards that have prepared a reduction.

    Attributes:
        watches: how many of its optimizers were watched.
        reported: whether it was said that its replicas differ.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.watches = 0
        self.reported = False

    @property
    def forwards(self) -> int:
        """How many forwards have prepared a reduction."""
        return self.clock.prepared


class Comparison:
    """One optimizer's part of one model.

    Args:
        model: its record.
        counts: of the model.
        mode: ``error``, or one that warns.
        every: optimizer steps between two looks, at least.
    """

    def __init__(self, model: ddp.Wrapped, counts: Counts, mode: str, every: int) -> None:
        self.model, self._counts = weakref.ref(model), counts
        self._mode, self._every = mode, every
        self._ranks = process_groups.ranks_of(model.wrapper.process_group)
        # Its number among those of the model is given with the first step that counts.
        self._name = ""
        self._over = False
        # Steps that count, the forwards that were done in the last of them, and the next one after which to look.
        self._steps, self._forwards, self._next = 0, 0, 1
        self._looks: List[int] = [0]
        # What the step that was the last one has left, until the next one begins.
        self._look: Optional[fingerprint.Look] = None
        self._names: List[str] = []
        # By step: what this rank saw, and has not compared yet.
        self._waiting: Dict[int, fingerprint.Sight] = {}
        self._pace = Pace(every)
        # Training forwards begun by the last step, steps since the last look whose gradients were not averaged, and how
        # many of them there were before each look.
        self._forwards_begun = self._local_now = 0
        self._local: Dict[int, int] = {}
        # Whether the optimizer takes its steps by the loss of its closure.
        self._searches = False

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
            self._local_now += 1

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
        if not self._name:
            self._name = f"drift/{model.number}/{self._counts.watches}"
            self._counts.watches += 1
            self._over = self._counts.watches > _OPTIMIZERS
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        named = {name: each for name, each in zip(model.names, model.parameters) if id(each) in held}
        compared = {name: each for name, each in named.items() if fingerprint.comparable(each)}
        self._searches = isinstance(optimizer, torch.optim.LBFGS)
        reduction = REDUCTION.of(model)
        averaged = None if reduction is None or reduction.within is not None else reduction.reductions
        self._look = fingerprint.Look(self._steps, self._forwards, compared, optimizer, averaged)

    def step_begins(self) -> None:
        """Called before each step of the optimizer, for what is due after the one before.

        Raises:
            DriftError: the replicas differ, and ``DDPFIX_DRIFT=error``.
        """
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
        log.debug(f"replicas are not compared any more: {error!r}")

    def is_due(self) -> bool:
        """Return whether something is to be done before the next step."""
        since = self._steps - self._looks[-1]
        return self._look is not None or (len(self._looks) > 1 and not since & (since - 1))

    def _turn(self) -> str:
        """Do what is due after this step; return the difference that was found."""
        model, store = self.model(), default_store()
        if model is None or store is None or not optimizers.replicated(model):
            self._over = True
            return ""
        own = keys(store, self._name)
        # In mode error all ranks end in the same step of one optimizer; else it is a matter of the model, whose
        # optimizers may live too short a time to hear of it (a program that makes a new one now and then).
        shared = own if self._mode == "error" else keys(store, f"drift/{model.number}")
        if self._look is not None:
            self._end_look(self._look, own)
        found = self._compare(model, own, shared)
        return found if found and self._mode != "error" else self._known(shared)

    def _known(self, shared: Any) -> str:
        """Return the difference that a rank found; in mode ``error`` when all know it, to end together."""
        step, _, text = shared.get("found").decode().partition(" ") if has(shared, "found") else ("", "", "")
        return text if text and (self._mode != "error" or self._steps > int(step)) else ""

    def _end_look(self, look: fingerprint.Look, own: Any) -> None:
        here, self._look = look.finish(), None
        if here is None:
            # The program moves its parameters itself.
            self._over = True
            return
        self._names = look.names
        self._next = self._steps + self._pace.steps(self._steps)
        if process_groups.own_rank() == self._ranks[0]:
            put(own, f"sight/{here.step}", here.to_text())
            put(own, f"digest/{here.step}", f"{here.digest()} {self._next}")
        else:
            self._waiting[here.step] = here
        self._looks.append(here.step)
        self._local[here.step], self._local_now = self._local_now, 0
        self._forget(own)

    def _forget(self, own: Any) -> None:
        """Drop what is old: the store keeps a few looks, and a rank what it has not compared of these."""
        while len(self._looks) > _KEPT:
            old = self._looks.pop(0)
            self._waiting.pop(old, None)
            self._local.pop(old, None)
            if old and process_groups.own_rank() == self._ranks[0]:
                for key in (f"sight/{old}", f"digest/{old}"):
                    own.delete_key(key)

    def _compare(self, model: ddp.Wrapped, own: Any, shared: Any) -> str:
        for step, here in list(self._waiting.items()):
            if not has(own, f"digest/{step}"):
                return ""
            del self._waiting[step]
            digest, following = own.get(f"digest/{step}").decode().split()
            self._next = max(self._next, int(following)) if self._steps < self._next else self._next
            if digest != here.digest():
                there = fingerprint.Sight.from_text(own.get(f"sight/{step}").decode())
                found = fingerprint.difference(there, here)
                if found is not None and found.numbers:
                    return self._publish(shared, self._described(model, step, found))
                if fingerprint.averaged_apart(there, here):
                    return self._publish(shared, self._averaged_apart(model, step, there, here))
        return ""

    def _publish(self, shared: Any, line: str) -> str:
        if shared.add("differ", 1) == 1:
            put(shared, "found", f"{self._steps} {line}")
        return line

    def _averaged_apart(self, model: ddp.Wrapped, step: int, there: fingerprint.Sight, here: fingerprint.Sight) -> str:
        names = [self._names[number] for number in fingerprint.unequal(there, here)]
        numbers = here.averaged, there.averaged
        return text.averaged_apart(self._where(model, step), names, len(self._names), numbers, self._search())

    def _search(self) -> str:
        return text.line_search() if self._searches else ""

    def _described(self, model: ddp.Wrapped, step: int, found: fingerprint.Difference) -> str:
        cause = self._search() or text.local_steps(self._local.get(step, 0), self._counts.clock.local_place)
        names = [self._names[number] for number in found.numbers]
        return text.diverged(self._where(model, step), found, names, len(self._names), cause)

    def _where(self, model: ddp.Wrapped, step: int) -> text.Where:
        before = self._looks[self._looks.index(step) - 1]
        name = type(model.wrapper.module).__name__
        return text.Where(process_groups.own_rank(), self._ranks[0], name, before, step)

    def _tell(self, line: str) -> None:
        if self._mode == "error":
            # A rank that ends at once closes connections on which others are still in the collective before this.
            time.sleep(_LINGER)
            raise DriftError(f"ddpfix: {line}")
        # A program may make a new optimizer for each of its steps.
        if not self._counts.reported:
            self._counts.reported = True
            log.on_every_rank(line)
