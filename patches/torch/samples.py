"""Ranks that train on the same samples, and epochs that have the same order: one line each, early in a run.

Without a DistributedSampler every rank trains on the same batches: gradients are averaged over copies, and many ranks
learn no more than one (openspeech issue 149). Without ``set_epoch`` a DistributedSampler shuffles alike in each epoch
(accelerate issue 654).

A pass over a DataLoader counts as training if optimizer steps of a model under DDP follow on its batches. Early in
the first such pass of a loader, ranks compare the indices of the sampler and the contents of the batches, through the
process group's store: the group's first rank leaves a digest, the others look for it after some later steps, and
nobody waits. Equal indices alone prove nothing (each rank may have a dataset of its own), and equal batches alone
do not either: a model that is given less than the loader's batch shares it out among ranks.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import weakref
from types import ModuleType
from typing import Any, List, Optional, Sequence, Tuple

from ddpfix import log
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import Site
from ddpfix.ranks.store import count, default_store

from . import contents, ddp, optimizers, readings, same_order, same_samples, sharding

# Loaders that are compared: a program that makes new ones for each epoch is not looked at for ever.
_LOADERS = 4


def watch(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in."""
    stage = Samples(site.keep(readings.Readings))
    ddp.put(site, owner, stage)
    site.at_undo(stage.end)
    for each in (contents, readings):
        skip_module(sys.modules[each.__name__])


def first_pass(site: Site, module: ModuleType, owner: Any) -> None:
    """Take notes of the pass that begins with an iterator."""
    own = site.keep(readings.Readings)
    site.wrap(owner, "__init__", own.begin)
    site.at_undo(own.forget)


def next_pass(site: Site, module: ModuleType, owner: Any) -> None:
    """Take notes of the pass that begins when persistent workers begin anew."""
    site.wrap(owner, "_reset", site.keep(readings.Readings).begin_again)


def indices(site: Site, module: ModuleType, owner: Any) -> None:
    """Take notes of what the sampler gives."""
    site.wrap_hot(owner, "_next_index", site.keep(readings.Readings).next_index)
    skip_frames(vars(owner)["_next_index"])


def batches(site: Site, module: ModuleType, owner: Any) -> None:
    """Take notes of what a loader hands out."""
    site.wrap_hot(owner, "__next__", site.keep(readings.Readings).next_batch)
    skip_frames(vars(owner)["__next__"])


class Samples(ddp.Stage):
    """Watches which loaders train models that DDP replicates."""

    place = "samples"

    def __init__(self, passes: readings.Readings) -> None:
        self._passes = passes
        self._handle: Any = None
        self._models = 0
        # By optimizer: how many models there were when it was looked at, and the ranks of the first that it trains.
        self._ranks: weakref.WeakKeyDictionary[Any, Tuple[int, List[int]]] = weakref.WeakKeyDictionary()
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._comparisons: List[same_samples.Comparison] = []
        self._orders = same_order.Orders()

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        if optimizers.is_alone(model):
            return
        self._models += 1
        model.inputs = (*model.inputs, functools.partial(_fed, self._passes, weakref.ref(model.wrapper)))
        self._passes.need()
        if self._handle is None:
            from torch.optim import optimizer

            self._handle = optimizer.register_optimizer_step_post_hook(self._stepped)

    def ended(self, model: ddp.Wrapped) -> None:
        model.inputs = tuple(each for each in model.inputs if getattr(each, "func", None) is not _fed)

    def end(self) -> None:
        """Undo: look at no optimizer any more."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizers.is_hidden():
            return
        reading = self._passes.latest()
        if reading is None or (reading.settled and not self._comparisons):
            return
        try:
            self._step(optimizer, reading)
        except Exception as error:
            reading.settled = True
            self._comparisons.clear()
            log.debug(f"samples are not compared: {error!r}")

    def _step(self, optimizer: Any, reading: readings.Reading) -> None:
        ranks = self._of(optimizer)
        if not ranks:
            return
        if reading.trained and not reading.settled:
            self._compare(reading, ranks)
            reading.settled = self._orders.stepped(reading, ranks)
        self._comparisons = [each for each in self._comparisons if not each.is_done()]

    def _of(self, optimizer: Any) -> List[int]:
        models, ranks = self._ranks.get(optimizer, (0, []))
        if models != self._models:
            trained = optimizers.trained(optimizer)
            ranks = sharding.ranks_of(trained[0].wrapper.process_group) if trained else []
            self._ranks[optimizer] = self._models, ranks
        return ranks

    def _compare(self, reading: readings.Reading, ranks: Sequence[int]) -> None:
        loader, store = reading.loader(), default_store()
        if reading.compared or store is None or loader in self._loaders:
            return
        reading.compared = True
        if loader is not None:
            self._loaders.add(loader)
        name = f"samples/{hashlib.sha1(','.join(map(str, ranks)).encode()).hexdigest()[:12]}"
        number = count(store, name)
        if number < _LOADERS and not same_samples.are_divided(ranks):
            self._comparisons.append(same_samples.Comparison(f"{name}/{number}", ranks, reading))


def _fed(passes: readings.Readings, wrapper: Any, inputs: Any, kwargs: Any) -> None:
    reading = passes.latest()
    # The mode of the module, which some trainers set without the wrapper's.
    if reading is not None and wrapper().module.training:
        reading.fed((inputs, kwargs))
