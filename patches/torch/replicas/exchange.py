"""What this rank saw of its parameters, and compares with what the first rank of the model's group saw.

Plain data, which outlives the model and its optimizer: what was not compared before they went is compared when the
process group ends.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ddpfix import log
from ddpfix.exchange.keys import delete, has, keys, put
from ddpfix.rules import replicas
from ddpfix.system import System

from ..internals import process_groups
from ..internals.wrapper import inner
from ..pipeline import ddp
from ..pipeline.step_count import Clock
from . import fingerprint

# Looks that the store keeps, for ranks that come later.
_KEPT = 4
# Before this step the next look is near, and a difference is told when that has it, too: a program may set its replicas
# apart for a few steps.
_SURE = 8


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

    @property
    def forwards(self) -> int:
        """How many forwards have prepared a reduction."""
        return self.clock.prepared


class SnapshotExchange:
    """What was seen of one optimizer's part of one model, step by step.

    Args:
        counts: of the model.
        searches: whether the optimizer takes its steps by the loss of its closure.

    Attributes:
        looks: the steps after which this rank has looked; 0 stands for the beginning.
        following: the step after which the first rank looks next, as far as it is known.
        unsure: a difference that is told when the next look has one as well, or when the run ends.
    """

    def __init__(self, model: ddp.Wrapped, counts: Counts, searches: bool) -> None:
        self._model = f"drift/{model.number}"
        self._name = f"{self._model}/{counts.watches}"
        counts.watches += 1
        self.counts, self._class, self._searches = counts, type(inner(model.wrapper)).__name__, searches
        self._ranks = process_groups.ranks_of(model.wrapper.process_group)
        self._is_first = process_groups.own_rank() == self._ranks[0]
        self.looks: List[int] = [0]
        self.following = 0
        # A difference that the next look has not shown yet.
        self.unsure = ""
        self._names: List[str] = []
        # By step: what this rank saw, and has not compared yet; how many steps without an average were before.
        self._waiting: Dict[int, replicas.Snapshot] = {}
        self._local: Dict[int, int] = {}

    def is_waiting(self) -> bool:
        """Return whether something was not compared yet, or not told."""
        return bool(self._waiting or self.unsure)

    def is_open(self) -> bool:
        """Return whether the last comparison has work here: the first rank learns of a difference from others."""
        return self._is_first or self.is_waiting()

    def told(self, shared: Any, steps: Optional[int] = None) -> str:
        """Return the difference that a rank has found, as it is in the store; "" where none has.

        Args:
            steps: those that this rank has done, where it is to know one only when all ranks do.
        """
        step, _, text = shared.get("found").decode().partition(" ") if has(shared, "found") else ("0", "", "")
        return text if steps is None or steps > int(step) else ""

    def own(self, store: Any) -> Any:
        """Return the keys of this optimizer's part."""
        return keys(store, self._name)

    def models(self, store: Any) -> Any:
        """Return the keys of the model."""
        return keys(store, self._model)

    def add(self, own: Any, here: replicas.Snapshot, names: List[str], local: int, following: int) -> None:
        """Keep a look, or leave it for the others.

        Args:
            local: steps since the look before whose gradients were not averaged.
            following: the step after which this rank looks next.
        """
        self._names = names
        if self._is_first:
            put(own, f"sight/{here.step}", System.json(here))
            put(own, f"digest/{here.step}", f"{fingerprint.digest(here)} {following}")
        else:
            self._waiting[here.step] = here
        self.looks.append(here.step)
        self._local[here.step] = local
        self._forget(own)

    def _forget(self, own: Any) -> None:
        """Drop what is old: the store keeps a few looks, and a rank what it has not compared of these."""
        while len(self.looks) > _KEPT:
            old = self.looks.pop(0)
            self._waiting.pop(old, None)
            self._local.pop(old, None)
            if old and self._is_first:
                delete(own, [f"sight/{old}", f"digest/{old}"])

    def compare(self, own: Any, shared: Any, steps: int) -> str:
        """Return the difference from the first rank in a look that the store has of both; "" where there is none."""
        for step, here in list(self._waiting.items()):
            if not has(own, f"digest/{step}"):
                continue
            del self._waiting[step]
            digest, following = own.get(f"digest/{step}").decode().split()
            self.following = max(self.following, int(following))
            found = "" if digest == fingerprint.digest(here) else self._differs(own, step, here)
            if not found or (step < _SURE and not self.unsure):
                self.unsure = found
                continue
            found = self.unsure or found
            if shared.add("differ", 1) == 1:
                put(shared, "found", f"{steps} {found}")
            return found
        return ""

    def _differs(self, own: Any, step: int, here: replicas.Snapshot) -> str:
        there = replicas.Snapshot(*System.loads(own.get(f"sight/{step}")))
        found = replicas.difference(there, here)
        if found is not None and found.numbers:
            return self._described(step, found)
        return self._averaged_apart(step, there, here) if replicas.has_averaged_apart(there, here) else ""

    def _averaged_apart(self, step: int, there: replicas.Snapshot, here: replicas.Snapshot) -> str:
        names = [self._names[number] for number in replicas.unequal(there, here)]
        numbers = here.averaged, there.averaged
        return replicas.describe_averages(self._where(step), names, len(self._names), numbers, self._search())

    def _search(self) -> str:
        return replicas.LINE_SEARCH if self._searches else ""

    def _described(self, step: int, found: replicas.Difference) -> str:
        cause = self._search() or replicas.local_steps(self._local.get(step, 0), self.counts.clock.local_place)
        names = [self._names[number] for number in found.numbers]
        return replicas.describe_divergence(self._where(step), found, names, len(self._names), cause)

    def _where(self, step: int) -> replicas.Where:
        before = self.looks[self.looks.index(step) - 1]
        return replicas.Where(process_groups.own_rank(), self._ranks[0], self._class, before, step)
