"""Replicas that differ: after the first optimizer step, and then now and then, ranks compare what DDP averages.

DDP averages gradients, and trusts that equal parameters with equal gradients stay equal. A parameter changed on one
rank, or a learning rate that differs, makes the replicas differ in silence (accelerate issue 2907).

Compared is only what nobody can mean otherwise. A step counts if a forward has prepared a reduction since the one
before; it counts by these forwards, which need all ranks, so that an additional step of one rank is none. Only torch's
own optimizers are looked at, and only parameters that DDP reduces. Where ranks have moved them by different gradients,
the program adds something of its own to them, or calls the module past its wrapper; where they are others before the
next step than they were after this one, the program moves them itself (noise, averages, a broadcast by hand). Neither
is compared.

Nobody waits: the first rank of the model's group leaves a digest in the process group's store, and the other ranks
look for it before the first, second, fourth, eighth... step that follows. A step whose gradients are averaged needs all
ranks, so that mostly the digest is there when it is looked for first. A rank compares itself with the first one only,
so what it does is the same for two ranks and for thousands.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddpfix import log
from ddpfix.models.parameter_names import in_short
from ddpfix.ranks.store.keys import default_store, has, keys, put

from ..internals import process_groups
from ..pipeline import ddp, optimizers
from ..pipeline.optimizer_hooks import Steps
from ..pipeline.step_count import CLOCK, Clock
from ..unused.states import REDUCTION
from . import fingerprint
from .interval import Pace
from .unaveraged import ADVICE

# Looks that the store keeps, for ranks that come later.
_KEPT = 4
# Seconds for which a rank waits before it ends with an error, so that the others come to theirs.
_LINGER = 1.0
# More optimizers of one model than these are one for each parameter or layer, and are not looked at.
_OPTIMIZERS = 8
_HINT = (
    "Both ranks applied the same gradients to them. Where that is not intended, find what changes a parameter on one"
    " rank alone, or trains model.module outside of DDP (DDPFIX_DRIFT=error ends the job here, off does not compare)"
)
_SEARCHES = (
    "LBFGS chooses its steps by the loss that the closure returns, which is each rank's own: return the mean over the"
    " ranks (all_reduce the loss in the closure). Else: "
)
BACKWARDS = (
    "Have every rank call backward equally often (on its loss times zero, loss * 0, where a batch is left out), and"
    " stop a loop on all ranks together (all_reduce the decision)"
)


_NOTHING: Tuple[int, List[Any]] = 0, []


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


class Drift(ddp.Stage):
    """Watches the optimizers of models that DDP replicates.

    Args:
        steps: of optimizers.
        mode: ``warn`` or ``error``.
        every: optimizer steps between two comparisons, at least.
    """

    place = "drift"

    def __init__(self, steps: Steps, mode: str, every: int) -> None:
        self._optimizer_steps, self._mode, self._every = steps, mode, every
        self._counts: weakref.WeakKeyDictionary[ddp.Wrapped, Counts] = weakref.WeakKeyDictionary()
        # By optimizer: how many models there were when it was looked at, and what is watched of it.
        self._watched: weakref.WeakKeyDictionary[Any, Tuple[int, List[Comparison]]] = weakref.WeakKeyDictionary()
        self._models = 0
        # Those that have something to do before the next step of their optimizer.
        self._due: List[Comparison] = []

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        # A model without a name may be on some ranks only.
        if not model.number or optimizers.is_alone(model):
            return
        clock = CLOCK.of(model)
        if clock is None:
            return
        self._counts[model] = Counts(clock)
        if not self._models:
            self._optimizer_steps.follow(self.place, self._steps, self._stepped)
        self._models += 1

    def hook(self, model: ddp.Wrapped, register: Any, state: Any, hook: Any) -> bool:
        model.averages = optimizers.averages(state, hook)
        return False

    def end(self) -> None:
        """Undo: follow no optimizer any more."""
        self._optimizer_steps.leave(self.place)
        self._watched.clear()
        self._due.clear()

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step: compare what the step before has left, where that is due."""
        # A CUDA graph is to have no wait for the device in the steps that it captures.
        if not self._due or optimizers.is_hidden():
            return
        due = [each for each in self._known(optimizer)[1] if each in self._due]
        for each in due:
            self._due.remove(each)
            each.step_begins()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped, and has come to its end."""
        # torch.compile is to find nothing in the step that it compiles.
        if optimizers.is_compiled():
            return
        models, watches = self._known(optimizer)
        if models != self._models:
            watches = self._renewed(optimizer, watches)
        for each in watches:
            if each.counts():
                if each.is_next():
                    each.look(optimizer)
                if each.is_due():
                    self._due.append(each)

    def _known(self, optimizer: Any) -> Tuple[int, List[Comparison]]:
        try:
            return self._watched.get(optimizer, _NOTHING)
        except TypeError:
            # An optimizer of a user's own that cannot be a key.
            return self._models, []

    def _renewed(self, optimizer: Any, watches: List[Comparison]) -> List[Comparison]:
        if not optimizers.is_torchs(optimizer):
            return []
        watches = [*watches, *self._new(optimizer, [each.model() for each in watches])]
        self._watched[optimizer] = self._models, watches
        return watches

    def _new(self, optimizer: Any, known: Sequence[Any]) -> List[Comparison]:
        """Return comparisons for models that have come, and of which this optimizer has parameters."""
        return [
            Comparison(model, self._counts[model], self._mode, self._every)
            for model in optimizers.trained(optimizer, known)
            if model in self._counts
        ]


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
        self._searches = type(optimizer).__name__ == "LBFGS"
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

    def _publish(self, shared: Any, text: str) -> str:
        if shared.add("differ", 1) == 1:
            put(shared, "found", f"{self._steps} {text}")
        return text

    def _averaged_apart(self, model: ddp.Wrapped, step: int, there: fingerprint.Sight, here: fingerprint.Sight) -> str:
        numbers = fingerprint.unequal(there, here)
        names = [self._names[number] for number in numbers]
        return (
            f"{self._head(model, step)}: {len(names)} of {len(self._names)} parameters, first {names[0]}:"
            f" {in_short(names)}. By optimizer step {step} this rank has averaged {_times(here.averaged)}, rank"
            f" {self._ranks[0]} {_times(there.averaged)}: averages of different steps meet. {BACKWARDS}"
        )

    def _head(self, model: ddp.Wrapped, step: int) -> str:
        before = self._looks[self._looks.index(step) - 1]
        when = f"between steps {before} and {step}" if before else f"in step {step}"
        return (
            f"rank {process_groups.own_rank()} diverged from rank {self._ranks[0]} in"
            f" {type(model.wrapper.module).__name__} {when}"
        )

    def _described(self, model: ddp.Wrapped, step: int, found: fingerprint.Difference) -> str:
        names = [self._names[number] for number in found.numbers]
        parts = [
            f"{len(names)} of {len(self._names)} parameters, first {names[0]} (by {found.most:.2g} or more):"
            f" {in_short(names)}",
            *(f"{name} {there} there, {own} here" for name, there, own in found.rates),
        ]
        return f"{self._head(model, step)}: {'; '.join(parts)}. {self._first_cause(step)}{_HINT}"

    def _first_cause(self, step: int) -> str:
        """Return the first cause to check: a line search, or optimizer steps on gradients that were not averaged."""
        if self._searches:
            return _SEARCHES
        number = self._local.get(step, 0)
        clock = self._counts.clock
        if not number:
            return ""
        return (
            f"{number} optimizer {'step' if number == 1 else 'steps'} before that used gradients of forwards under"
            f" no_sync alone ({clock.local_place}), which DDP does not average. {ADVICE}. Else: "
        )

    def _tell(self, text: str) -> None:
        if self._mode == "error":
            # A rank that ends at once closes connections on which others are still in the collective before this.
            time.sleep(_LINGER)
            raise DriftError(f"ddpfix: {text}")
        # A program may make a new optimizer for each of its steps.
        if not self._counts.reported:
            self._counts.reported = True
            log.on_every_rank(text)


def _times(number: Optional[int]) -> str:
    return "once" if number == 1 else f"{number} times"
