"""Replicas that part: after the first optimizer step, and then now and then, ranks compare what they train.

They do so before the next step of the optimizer: a program that calls the module past its wrapper, and gives all ranks
the same values by itself after each step (a broadcast by hand), has done that by then.

DDP averages gradients, and trusts that equal parameters with equal gradients stay equal. A module called past its
wrapper, a parameter changed on one rank or a learning rate that differs makes the replicas part in silence
(accelerate issue 2907: the loss goes down, and the ranks have never had the same model).

Nobody waits: the first rank of the model's group leaves a digest in the process group's store before some of its
steps, and the other ranks look for it before the first, second, fourth, eighth... step that follows. A step whose
gradients are averaged needs all ranks, so that mostly the digest is there when it is looked for first. A rank compares
itself with the first one only, so what it does is the same for two ranks and for thousands.
"""

from __future__ import annotations

import sys
import time
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.ranks.store import default_store, has, keys, put

from . import ddp, diagnosis, optimizers, sharding, sight, strays
from .pace import Pace

if TYPE_CHECKING:
    from .outside import Outside

# Looks that the store keeps, for ranks that come later.
_KEPT = 4
# Seconds for which a rank waits before it ends with an error, so that the others come to theirs.
_LINGER = 1.0
# More optimizers of one model than these are one for each parameter or layer, and are not looked at.
_OPTIMIZERS = 8
_ADVICE = (
    "Gradients are averaged in DDP's own forward only: look for a module that is called past it (model.module(x)), for"
    " parameters that were added or set free after it was built, or for what one rank alone changes (DDPFIX_DRIFT=error"
    " ends the job here, off does not look)"
)


class DriftError(RuntimeError):
    """The replicas of a model differ (``DDPFIX_DRIFT=error``). The message names the rank, the step and the place."""


def watch(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in."""
    stage = Drift(str(site.settings["drift"]), int(site.settings["drift_steps"]))
    ddp.put(site, owner, stage)
    site.at_undo(stage.end)


class Drift(ddp.Stage):
    """Watches the optimizers of models that DDP replicates.

    Args:
        mode: ``warn``, ``average`` or ``error``.
        every: optimizer steps between two comparisons, at least.
    """

    place = "drift"

    def __init__(self, mode: str, every: int) -> None:
        self._mode, self._every = mode, every
        self._handles: List[Any] = []
        # By optimizer: what it trains outside of all wrappers; None if that is nothing, or nothing more to be found.
        self._outside: weakref.WeakKeyDictionary[Any, Optional[Outside]] = weakref.WeakKeyDictionary()
        # By optimizer: how many models there were when it was looked at, and what is watched of it.
        self._watched: weakref.WeakKeyDictionary[Any, Tuple[int, List[Watch]]] = weakref.WeakKeyDictionary()
        self._models = 0

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        if len(sharding.ranks_of(model.wrapper.process_group)) == 1:
            return
        if self._mode == "average":
            _average(model)
        self._models += 1
        if not self._handles:
            from torch.optim import optimizer

            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._steps))
            self._handles.append(optimizer.register_optimizer_step_post_hook(self._stepped))

    def ended(self, model: ddp.Wrapped) -> None:
        model.averaged = frozenset()

    def hook(self, model: ddp.Wrapped, register: Any, state: Any, hook: Any) -> bool:
        model.averages = optimizers.averages(state, hook)
        return False

    def end(self) -> None:
        """Undo: look at no optimizer any more."""
        while self._handles:
            self._handles.pop().remove()
        self._watched.clear()
        self._outside.clear()
        past: Any = sys.modules.get(f"{__package__}.past")
        if past is not None:
            past.end()

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step: see what it trains, of models under DDP and beside them."""
        # torch.compile is to find nothing in the step that it compiles, and a CUDA graph no wait for the device.
        if optimizers.is_hidden():
            return
        try:
            if optimizer not in self._outside:
                self._outside[optimizer] = self._beside(optimizer)
            outside, watches = self._outside[optimizer], self._of(optimizer)
        except TypeError:
            # An optimizer of a user's own that cannot be a key.
            return
        if outside is not None:
            self._look_beside(optimizer, outside)
        for each in watches:
            each.step_begins(optimizer)

    def _beside(self, optimizer: Any) -> Optional[Outside]:
        if len(self._outside) >= _OPTIMIZERS:
            return None
        try:
            found: Optional[Outside] = _outside().of(optimizer)
        except Exception as error:
            log.debug(f"parameters outside of wrappers are not compared: {error!r}")
            return None
        return found

    def _look_beside(self, optimizer: Any, watched: Outside) -> None:
        model = watched.model()
        try:
            found = watched.step_begins() if model is not None and optimizers.replicated(model) else None
        except Exception as error:
            log.debug(f"parameters outside of wrappers are not compared any more: {error!r}")
            found = None
        if found != "":
            self._outside[optimizer] = None
        if found and self._mode == "error":
            time.sleep(_LINGER)
            raise DriftError(f"ddpfix: {found}")
        if found:
            log.on_every_rank(found)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped: count that, where it came to its end."""
        if optimizers.is_hidden():
            return
        try:
            watches = self._watched.get(optimizer, (0, []))[1]
        except TypeError:
            return
        for each in watches:
            each.step_ended()

    def _of(self, optimizer: Any) -> List[Watch]:
        models, watches = self._watched.get(optimizer, (0, []))
        if models != self._models:
            watches = [*watches, *self._new(optimizer, [each.model() for each in watches])]
            self._watched[optimizer] = self._models, watches
        return watches

    def _new(self, optimizer: Any, known: Sequence[Any]) -> List[Watch]:
        """What is to be watched from now on: models that have come, and of which this optimizer has parameters."""
        if getattr(optimizer, "_overlap_with_ddp", False):
            # Its step ends before the parameters are those of the other ranks.
            return []
        return [Watch(model, self._mode, self._every) for model in optimizers.trained(optimizer, known)]


def _outside() -> Any:
    """The module; a process without a model under DDP does without it."""
    from . import outside

    ddp.untrace()
    return outside


def _average(model: ddp.Wrapped) -> None:
    from .averaging import Averaging

    ddp.untrace()
    averaging = Averaging(model)
    model.attach(Drift.place, averaging.forward_begins, averaging.forward_ended)


class Watch:
    """One optimizer's part of one model.

    Args:
        model: its record.
        mode: ``error``, or one that warns.
        every: optimizer steps between two looks, at least.
    """

    def __init__(self, model: ddp.Wrapped, mode: str, every: int) -> None:
        self.model = weakref.ref(model)
        self._mode, self._every = mode, every
        self._ranks = sharding.ranks_of(model.wrapper.process_group)
        self._name = f"drift/{model.number}/{model.optimizers}"
        model.optimizers += 1
        self._over = model.optimizers > _OPTIMIZERS
        # Done so far, and of these when it was last this one's turn; the next one after which to look.
        self._steps, self._seen, self._next = 0, 0, 1
        self._names: List[str] = []
        self._looks: List[int] = [0]
        # By step: what this rank saw, and has not compared yet.
        self._waiting: Dict[int, sight.Sight] = {}
        self._pace = Pace(every)

    def step_ended(self) -> None:
        """Called after each step of the optimizer, and not after one that raised."""
        self._steps += 1

    def step_begins(self, optimizer: Any) -> None:
        """Called before each step of the optimizer, for what is due after the one before.

        Raises:
            DriftError: the replicas differ, and ``DDPFIX_DRIFT=error``.
        """
        if self._over or self._seen == self._steps or not self._due():
            return
        self._seen = self._steps
        try:
            with self._pace.timed():
                found = self._turn(optimizer)
        except Exception as error:
            self._over = True
            log.debug(f"replicas are not compared any more: {error!r}")
            return
        if found:
            self._over = True
            self._tell(found)

    def _due(self) -> bool:
        since = self._steps - self._looks[-1]
        return self._steps == self._next or (len(self._looks) > 1 and not since & (since - 1))

    def _turn(self, optimizer: Any) -> str:
        """What is due after this step; returns what was found."""
        model = self.model()
        store = default_store()
        if model is None or store is None or not optimizers.replicated(model):
            self._over = True
            return ""
        own = keys(store, self._name)
        # In mode error all ranks end in the same step of one optimizer; else it is a matter of the model, whose
        # optimizers may live too short a time to hear of it (a program that makes a new one now and then).
        shared = own if self._mode == "error" else keys(store, f"drift/{model.number}")
        found = self._compare(model, own, shared)
        if self._mode == "error" or not found:
            found = self._known(shared)
        if self._steps == self._next and not found:
            self._look(model, optimizer, own)
        return found

    def _known(self, shared: Any) -> str:
        """What a rank has found; in mode ``error`` when the others know it as well, so that all end in one step."""
        step, _, text = shared.get("found").decode().partition(" ") if has(shared, "found") else ("", "", "")
        return text if text and (self._mode != "error" or self._steps > int(step)) else ""

    def _look(self, model: ddp.Wrapped, optimizer: Any, own: Any) -> None:
        trained = strays.trained(model, optimizer)
        parameters = {name: each for name, each in trained.items() if sight.comparable(each)}
        here = sight.take(self._steps, parameters, optimizer.param_groups)
        self._names = list(parameters)
        self._next = self._steps + self._pace.steps(self._steps)
        if self._is_first():
            self._publish(own, here)
        else:
            self._waiting[self._steps] = here
        self._looks.append(self._steps)
        self._forget(own)

    def _is_first(self) -> bool:
        from torch import distributed

        return int(distributed.get_rank()) == self._ranks[0]

    def _publish(self, own: Any, here: sight.Sight) -> None:
        put(own, f"sight/{here.step}", here.to_text())
        put(own, f"digest/{here.step}", f"{here.digest()} {self._next}")

    def _forget(self, own: Any) -> None:
        """Drop what is old: the store keeps a few looks, and a rank what it has not compared of these."""
        while len(self._looks) > _KEPT:
            old = self._looks.pop(0)
            self._waiting.pop(old, None)
            if old and self._is_first():
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
                return self._differs(model, own, shared, here)
        return ""

    def _differs(self, model: ddp.Wrapped, own: Any, shared: Any, here: sight.Sight) -> str:
        there = sight.Sight.from_text(own.get(f"sight/{here.step}").decode())
        if there.names != here.names:
            # They have different parameters on purpose (an optimizer's shard).
            self._over = True
            return ""
        text = self._described(model, here.step, sight.difference(there, here))
        if shared.add("differ", 1) == 1:
            put(shared, "found", f"{self._steps} {text}")
        return text

    def _described(self, model: ddp.Wrapped, step: int, found: sight.Difference) -> str:
        from torch import distributed

        first, here = self._ranks[0], distributed.get_rank()
        before = self._looks[self._looks.index(step) - 1]
        since = f"between steps {before} and {step}" if before else f"step {step}"
        parts = []
        if found.numbers:
            names = [self._names[number] for number in found.numbers]
            parts.append(
                f"{len(names)} of {len(self._names)} parameters, first {names[0]} (by {found.most:.2g} or more):"
                f" {diagnosis.in_short(names)}"
            )
        parts += [f"{name} {there} there, {own} here" for name, there, own in found.rates]
        return (
            f"rank {here} differs from rank {first} in {type(model.wrapper.module).__name__} since {since}:"
            f" {'; '.join(parts)}. {_ADVICE}"
        )

    def _tell(self, text: str) -> None:
        if self._mode == "error":
            # A rank that ends at once closes connections on which others are still in the collective before this.
            time.sleep(_LINGER)
            raise DriftError(f"ddpfix: {text}")
        model = self.model()
        # A program may make a new optimizer for each of its steps.
        if model is None or model.wrapper is None or model.parted:
            return
        model.parted = True
        log.on_every_rank(text)
        from . import past

        past.name_next(model.wrapper)
