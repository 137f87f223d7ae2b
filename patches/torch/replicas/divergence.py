"""Replicas that differ: after the first optimizer steps, and then now and then, ranks compare what DDP averages.

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

import weakref
from types import ModuleType
from typing import Any, List, Optional, Tuple

from ddpfix.exchange import lowest_rank
from ddpfix.exchange.keys import default_store
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.site import Site
from ddpfix.system import System
from ddpfix.unlisted_thread import Background

from ..pipeline import ddp, optimizers
from ..pipeline.optimizers import Steps
from ..pipeline.process_group import Follower, ProcessGroup
from ..pipeline.step_count import CLOCK, Clocks
from .comparison import Comparison, Counts
from .unaveraged import FEW, UnreducedModel

_NOTHING: Tuple[int, List[Any]] = 0, []
# Comparisons that are remembered for the end.
_MOST = 32
# Seconds that the end of a process group waits for the store, and pauses before the looks at it: the first rank may be
# a step behind.
_SHORT, _PAUSES = 1.0, (0.0, 0.1, 0.4)

# Optimizer steps between two comparisons, at least; after so many a model is named that was never averaged.
_EVERY = 200


class Divergence(ddp.Stage, Follower):
    """Watches the optimizers of models that DDP replicates, and says what is left when the process group ends."""

    place = "divergence"

    def __init__(self) -> None:
        self._optimizer_steps, self._every, self._is_error = Steps(), _EVERY, False
        self._process = System.pid()
        self._counts: weakref.WeakKeyDictionary[ddp.Wrapped, Counts] = weakref.WeakKeyDictionary()
        # By optimizer: how many models there were when it was looked at, and what is watched of it.
        self._watched: ByIdentity[Tuple[int, List[Comparison]]] = ByIdentity()
        self._models = 0
        # Those that have something to do before the next step of their optimizer, which may be no more by then.
        self._due: weakref.WeakSet[Comparison] = weakref.WeakSet()
        # What may be left to compare when the process group ends.
        self._seen: List[Comparison] = []
        # The models of which no step was covered by a reduction yet.
        self._unreduced: List[UnreducedModel] = []

    def begin(self, steps: Steps, mode: str) -> None:
        """Take the steps of optimizers, and what the user wants: a number is that of steps between two comparisons."""
        self._optimizer_steps, self._every = steps, int(mode) if mode.isdigit() else _EVERY
        self._is_error = mode == "error"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        clock = CLOCK.of(model)
        # A model without a name may be on some ranks only.
        if not model.number or optimizers.is_alone(model) or clock is None:
            return
        self._counts[model] = Counts(clock)
        unreduced = UnreducedModel(model, clock)
        self._unreduced.append(unreduced)
        model.attach(self.place, after=unreduced.forward_ended)
        if not self._models:
            self._optimizer_steps.follow(self.place, self._begins, self._stepped)
        self._models += 1

    def hook(self, model: ddp.Wrapped, state: Any, hook: Any) -> None:
        model.averages = optimizers.averages(state, hook)

    def undone(self) -> None:
        """Follow no optimizer any more."""
        self._optimizer_steps.leave(self.place)
        self._watched.clear()
        self._due.clear()
        self._seen.clear()
        self._unreduced.clear()

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step: compare what the step before has left, where that is due."""
        # A CUDA graph is to have no wait for the device in the steps that it captures.
        if self._due and not optimizers.is_hidden():
            for each in [each for each in self._known(optimizer)[1] if each in self._due]:
                self._due.discard(each)
                each.step_begins()
        for unreduced in tuple(self._unreduced):
            if unreduced.is_settled(unreduced.begins, optimizer):
                self._forget(unreduced)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped, and has come to its end."""
        # torch.compile is to find nothing in the step that it compiles.
        if optimizers.is_compiled():
            return
        for each in self._watches(optimizer):
            if each.stepped(optimizer):
                self._due.add(each)
                # It goes with its optimizer.
                if each not in self._seen:
                    self._seen = [*self._seen, each][-_MOST:]
        for unreduced in tuple(self._unreduced):
            if unreduced.is_settled(unreduced.stepped, optimizer):
                self._forget(unreduced)
            elif unreduced.steps >= self._every:
                self._report(unreduced)

    def _forget(self, unreduced: UnreducedModel) -> None:
        if unreduced in self._unreduced:
            self._unreduced.remove(unreduced)
        model = unreduced.model()
        if model is not None:
            model.detach(self.place)

    def _report(self, unreduced: UnreducedModel) -> None:
        """Speak of a model that was never averaged, once, if it is certain."""
        self._forget(unreduced)
        line = unreduced.line()
        if line:
            lowest_rank.report(f"unaveraged/{unreduced.number}", line, warns=True)

    def up(self) -> None:
        self._process = System.pid()

    def exits(self) -> None:
        self.leaving()

    def leaving(self) -> None:
        """Compare what was not compared yet, and say what differs, and which models were never averaged."""
        if System.pid() != self._process:
            # A forked child is no rank, and has the connection of its parent.
            return
        left = [seen for seen in self._seen if seen.is_open() and not seen.counts.reported]
        self._seen.clear()
        if left:
            # Whoever keeps the store may be stopped, or gone.
            Background(lambda: _compare_rest(left)).join(_SHORT)
        for unreduced in tuple(self._unreduced):
            if unreduced.steps >= FEW and not unreduced.is_left_out():
                self._report(unreduced)
        lowest_rank.flush()

    def _known(self, optimizer: Any) -> Tuple[int, List[Comparison]]:
        return self._watched.get(optimizer) or _NOTHING

    def _watches(self, optimizer: Any) -> List[Comparison]:
        """Return what is watched of an optimizer, also of models that have come and of which it has parameters."""
        models, watches = self._known(optimizer)
        if models != self._models:
            if not optimizers.is_torchs(optimizer):
                return []
            new = optimizers.trained(optimizer, [each.model() for each in watches])
            made = (
                Comparison(each, self._counts[each], self._every, self._is_error)
                for each in new
                if each in self._counts
            )
            self._watched[optimizer] = models, watches = self._models, [*watches, *made]
        return watches


def _compare_rest(left: List[Comparison]) -> None:
    for pause in _PAUSES:
        System.pause(pause)
        store = default_store()
        for seen in left if store is not None else ():
            line = seen.compare(store) or seen.told(store)
            if line:
                seen.counts.report(line)
        if not any(seen.is_waiting() and not seen.counts.reported for seen in left):
            return
    for seen in left:
        if seen.unsure:
            seen.counts.report(seen.unsure)


def models(site: Site, module: ModuleType, owner: Any) -> None:
    stage = site.keep(Divergence)
    stage.begin(site.keep(Steps), str(site.settings["divergence"]))
    site.keep(Clocks).follow(site, owner, stage.place)
    ddp.put(site, owner, stage)
    ddp.untrace()
    site.at_undo(stage.undone)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Say at the end of the process group what differs, and which models were never averaged."""
    site.keep(ProcessGroup).follow(site, module, site.keep(Divergence))
