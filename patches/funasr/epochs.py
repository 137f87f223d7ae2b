"""The epoch that is running: which samplers belong to it, what the ranks agree on, and its one line at the end."""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Dict, List, MutableMapping, Optional
from weakref import WeakKeyDictionary

from torch import distributed

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site
from ddpfix.uneven import async_sum

from . import jsonl
from .batches import KINDS, Counts, counts

_RUNNING: ContextVar[Optional[Epoch]] = ContextVar("ddpfix_funasr_epoch", default=None)


class Samplers:
    """What each sampler gave, and how often it was read outside of any epoch: its orders differ from time to time."""

    def __init__(self) -> None:
        self.read: MutableMapping[Any, int] = WeakKeyDictionary()
        # How many batches it gave.
        self.given: MutableMapping[Any, int] = WeakKeyDictionary()

    def counted(self, sampler: Any, batches: int) -> None:
        """Have ``len(sampler)`` return what it gives: trainers log it, and some step on the last batch."""
        if hasattr(sampler, "batch_num"):
            sampler.batch_num = batches
        self.given[sampler] = batches


class Epoch:
    """One call of a trainer's ``train_epoch`` or ``validate_epoch``."""

    def __init__(self, trainer: Any, training: bool, number: Any, loader: Any) -> None:
        self.trainer, self.training, self.loader = trainer, training, loader
        self.number = number if isinstance(number, int) else 0
        self.sampler = getattr(loader, "batch_sampler", None)
        self.name = f"{'training' if training else 'validation'} epoch {self.number}"
        self.counts = counts()
        # By kind, the setting that decides.
        self.hints = {"long": "max_token_length", "short": "min_token_length", "budget": "batch_size"}
        # What each rank reported: its counts, and its number of batches. None: nothing was gathered yet.
        self.ranks: Optional[List[Counts]] = None
        self.batches: Optional[int] = None

    def gather(self, batches: int) -> List[Counts]:
        """Gather every rank's counts and number of batches, by rank: one small collective an epoch."""
        row = [batches, *(self.counts[kind] for kind in KINDS)]
        gathered = async_sum.gathered(row, self.trainer.device)
        self.ranks = [dict(zip(("batches", *KINDS), numbers)) for numbers in gathered]
        return self.ranks

    def changes(self) -> str:
        """Return what was left out, split or repeated, and by which setting; "" where nothing was."""
        rows = self.ranks or [self.counts]
        shown = []
        for title, lines in (("utterances left out", _SAMPLES), ("batches", _BATCHES)):
            totals = [(sum(row[kind] for row in rows), kind) for kind in lines]
            hints = {kind: f"dataset_conf.{hint}" for kind, hint in self.hints.items()}
            parts = [f"{total} {lines[kind].format(**hints)}" for total, kind in totals if total]
            shown += [f"; {title}: {', '.join(parts)}"] if parts else []
        return "".join(shown)


_SAMPLES = {
    "long": "longer than {long} (raise it to keep them)",
    "short": "shorter than {short}",
    "budget": "longer than {budget} (raise it to keep them)",
    "last": "in an incomplete last batch (drop_last)",
}
_BATCHES = {
    "split": "split to respect the batch size",
    "empty": "empty and removed",
    "repeated": "repeated to give every rank the same number",
    "cut": "dropped to give every rank the same number (DDPFIX_UNEVEN=pad repeats some instead)",
}


def of(sampler: Any) -> Optional[Epoch]:
    """Return the running epoch (a validation inside of a training epoch is one) if it reads from this sampler."""
    epoch = _RUNNING.get()
    return epoch if epoch is not None and epoch.sampler is sampler else None


def alone() -> bool:
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1


def tell(site: Site, module: ModuleType, owner: Any) -> None:
    """One line at the end of an epoch about what was left out, split or repeated, and which setting decides."""
    track(site, owner)


def count(site: Site, module: ModuleType, owner: Any) -> None:
    """Count what a list of data leaves out when it is read."""
    jsonl.count(site, module, owner)


def track(site: Site, trainer: Any) -> None:
    """Know when an epoch of this class of trainers runs."""
    left_out = site.keep(jsonl.LeftOut)
    for name, training in (("train_epoch", True), ("validate_epoch", False)):
        name = name if hasattr(trainer, name) else "_" + name
        site.wrap(trainer, name, functools.partial(_tracked, training, left_out))


def _tracked(training: bool, left_out: jsonl.LeftOut, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    outer = _RUNNING.get()
    if outer is not None and outer.trainer is instance and outer.training == training:
        # Two patches track epochs; the outer one has begun this one.
        return wrapped(*args, **kwargs)
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    loader = "dataloader_train" if training else "dataloader_val"
    epoch = Epoch(instance, training, given.get("epoch"), given.get(loader, getattr(instance, loader, None)))
    with temporary.assigned(_RUNNING, epoch):
        result = wrapped(*args, **kwargs)
    # None: none of the samplers that are covered gave these batches.
    if epoch.batches is not None:
        if epoch.ranks is None and training and not alone():
            epoch.gather(epoch.batches)
        _report(epoch, left_out.of(getattr(epoch.loader, "dataset", None)))
    return result


def _report(epoch: Epoch, read: Dict[str, int]) -> None:
    where = f" on each of {len(epoch.ranks)} ranks" if epoch.ranks is not None and len(epoch.ranks) > 1 else ""
    noun = "batch" if epoch.batches == 1 else "batches"
    reasons = ", ".join(f"{count} by {reason}" for reason, count in read.items())
    if reasons:
        reasons = f"; utterances not read from the list: {reasons} (raise the limit in dataset_conf to keep them)"
    changes = epoch.changes()
    line = f"{epoch.name}: {epoch.batches} {noun}{where}{changes}{reasons}"
    if not (changes or read):
        log.debug(line)
    elif epoch.training:
        log.info(line)
    else:
        # The same about a validation again, every thousand steps, tells nobody anything.
        log.once(line, epoch.trainer)
