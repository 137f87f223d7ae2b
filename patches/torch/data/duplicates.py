"""Ranks that give their model the same inputs: one line, early in a run.

Without a DistributedSampler every rank trains on the same batches, and gradients are averaged over copies (openspeech
issue 149). What counts is what enters the model and what it returns, not what a loader gives: a loader may count steps,
or give all ranks the same batches, to which each adds something of its own, within the model or before.

The inputs and outputs of some of the first training forwards are looked at, where they lie on the CPU, so that nothing
waits for a device. The first rank of the model's group leaves a digest of them in the process group's store, the others
look for it after some later forwards, and nobody waits. A run that ends before, and has read a loader without a sampler
of its own, has its ranks compared when the process group ends. Inputs that are all alike (made up to measure speed, or
a single batch) say nothing, nor do labels alone.
"""

from __future__ import annotations

import hashlib
import weakref
from types import ModuleType
from typing import Any, List, Optional, Sequence

import torch

from ddpfix import log
from ddpfix.background import Background
from ddpfix.patching.site import Site
from ddpfix.ranks.store.keys import default_store, has, keys, put

from ..internals import process_groups
from ..pipeline import ddp, optimizers
from ..pipeline.end_of_run import AtEnd
from ..pipeline.process_group import ProcessGroup
from . import batch_digest
from .unsharded import Unsharded

# The training forwards that are compared, and those of them that are looked at.
_FORWARDS = 32
_LOOKS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
# Forwards after which nobody looks any more for what other ranks have found.
_PATIENCE = 1 << 16
# Forwards that a run has to have made where it ends early.
_FEW = 4
# Models that are remembered for the end, and seconds that it waits for the store.
_MOST, _SHORT = 32, 1.0


class AtEndOfSamples(AtEnd):
    """Compares what a short run has shown."""

    place = "samples"


def stage(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in."""
    samples = Samples(site.keep(Unsharded))
    site.keep(AtEndOfSamples).speakers[:] = [samples]
    ddp.put(site, owner, samples)


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Compare what a short run has shown when the process group ends."""
    site.keep(ProcessGroup).follow(site, module, site.keep(AtEndOfSamples))


def loaders(site: Site, module: ModuleType, owner: Any) -> None:
    """Note whether a loader gives every rank the same."""
    site.wrap(owner, "__init__", site.keep(Unsharded).begin)


class Samples(ddp.Stage):
    """Compares the first inputs of models that DDP replicates.

    Args:
        loaders: what is known of those that this rank has read.
    """

    place = "samples"

    def __init__(self, loaders: Unsharded) -> None:
        self._loaders = loaders
        self._begun: List[_Beginning] = []

    def at_end(self) -> None:
        """Compare what runs have shown that end before the usual number of forwards."""
        # Batches that are made up, the same on all ranks, are intended in a run of a few steps, such as a test.
        left = [each for each in self._begun if each.is_short()] if self._loaders.is_read else []
        self._begun.clear()
        if left:
            # Whoever keeps the store may be stopped, or gone.
            Background(lambda: _compare_at_end(left)).join(_SHORT)

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        # Perhaps not all ranks have a copy.
        if call is not None and not optimizers.is_alone(model):
            beginning = _Beginning(model)
            self._begun = [*self._begun, beginning][-_MOST:]
            model.inputs = (*model.inputs, beginning.given)
            model.attach(self.place, after=beginning.returned)

    def ended(self, model: ddp.Wrapped) -> None:
        model.inputs = tuple(each for each in model.inputs if type(getattr(each, "__self__", None)) is not _Beginning)


class _Beginning:
    """The first training forwards of one model."""

    def __init__(self, model: ddp.Wrapped) -> None:
        self._model = weakref.ref(model)
        self._number, self._class = model.number, type(model.wrapper.module).__name__
        self._is_over = False
        self._ranks = process_groups.ranks_of(model.wrapper.process_group)
        self._forwards = 0
        # Of the inputs of the forward that runs, if it is looked at, and of those before.
        self._inputs: Optional[str] = None
        self._seen: List[str] = []
        self._all = hashlib.blake2b(digest_size=16)

    def given(self, inputs: Any, kwargs: Any) -> None:
        """Called with what the model is given in a forward that has gradients enabled."""
        self._inputs = None
        model = self._model()
        if model is None or not ddp.trains(model.wrapper):
            return
        self._forwards += 1
        if self._forwards in _LOOKS:
            self._inputs = self._digest((inputs, kwargs))

    def returned(self, output: Any) -> None:
        """Called after each forward that has gradients enabled."""
        if self._inputs is not None:
            returned = self._digest(output)
            self._seen.append(self._inputs)
            self._all.update(f"{self._inputs} {returned}".encode())
            if not (self._inputs and returned):
                self._end()
        since = self._forwards - _FORWARDS
        if since > 0 and not since & (since - 1):
            try:
                self._compare(since)
            except Exception as error:
                log.debug(f"inputs are not compared: {error!r}")
                self._end()

    def _digest(self, value: Any) -> str:
        """Of what can be compared; "" of anything else."""
        try:
            # What a mode of the program counts, a compiler or a tracer sees is to hold nothing of this.
            return "" if optimizers.is_hidden() or torch.jit.is_tracing() else batch_digest.digest(value)
        except Exception:
            return ""

    def _compare(self, since: int) -> None:
        model, store = self._model(), default_store()
        # A copy has no number: some ranks may have it alone.
        asks = model is not None and bool(model.number) and store is not None and since <= _PATIENCE
        if model is None or not asks or len(set(self._seen)) < 2 or are_divided(self._ranks):
            self._end()
            return
        own = keys(store, f"samples/{model.number}")
        if process_groups.own_rank() != self._ranks[0]:
            self._follow(own)
            return
        if since == 1:
            put(own, "digest", self._all.hexdigest())
        if has(own, "same"):
            log.on_every_rank(_described(self._class, len(self._ranks), _FORWARDS))
            self._end()

    def _follow(self, own: Any) -> None:
        if not has(own, "digest"):
            return
        # Whoever comes last knows that all are equal.
        same = own.get("digest").decode() == self._all.hexdigest()
        if same and own.add("equal", 1) == len(self._ranks) - 1:
            put(own, "same", "")
        self._end()

    def is_short(self) -> bool:
        """Return whether the run has ended before the usual comparison, and shows something."""
        return not self._is_over and self._forwards <= _FORWARDS and len(set(self._seen)) >= _FEW

    def compare_at_end(self) -> None:
        """Have the rank that comes last say it, if all have seen the same."""
        store = default_store()
        if store is None or not self._number or are_divided(self._ranks):
            return
        # One request of each rank, under a key of what it has seen.
        seen, last = keys(store, f"samples/{self._number}/end"), max(n for n in _LOOKS if n <= self._forwards)
        if seen.add(f"{last} {self._all.hexdigest()}", 1) == len(self._ranks):
            log.on_every_rank(_described(self._class, len(self._ranks), last))

    def _end(self) -> None:
        self._is_over = True
        model = self._model()
        if model is not None:
            model.inputs = tuple(each for each in model.inputs if getattr(each, "__self__", None) is not self)
            model.detach(Samples.place)


def _compare_at_end(left: Sequence[_Beginning]) -> None:
    for each in left:
        each.compare_at_end()


def _described(kind: str, number: int, forwards: int) -> str:
    return (
        f"all {number} ranks gave their {kind} the same inputs and got the same outputs in the first {forwards}"
        " training forwards. DataLoader(..., sampler=DistributedSampler(dataset)) gives each rank its own part"
        " (DDPFIX_TORCH_SAMPLES=0 does not compare)"
    )


def are_divided(ranks: Sequence[int]) -> bool:
    """Return whether some of these ranks, not all, form a group: they may share samples (tensor parallelism)."""
    held = set(ranks)
    return any(1 < len(group) < len(held) and held.issuperset(group) for group in process_groups.known())
