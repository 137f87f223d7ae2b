"""The epoch that is running: which samplers belong to it, what the ranks agree on, and its one line at the end."""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Dict, List, MutableMapping, Optional, Tuple
from weakref import WeakKeyDictionary

from torch import distributed

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Site
from ddpfix.uneven import async_sum

from . import jsonl
from .batches import Counts

_RUNNING: ContextVar[Optional[Epoch]] = ContextVar("ddpfix_funasr_epoch", default=None)


class Samplers:
    """What each sampler gave, and how often it was read outside of any epoch: its orders differ from time to time."""

    def __init__(self) -> None:
        self.read: MutableMapping[Any, int] = WeakKeyDictionary()
        self._given: MutableMapping[Any, int] = WeakKeyDictionary()

    def counted(self, sampler: Any, batches: int) -> None:
        """Have ``len(sampler)`` return what it gives: trainers log it, and some step on the last batch."""
        if hasattr(sampler, "batch_num"):
            sampler.batch_num = batches
        self._given[sampler] = batches

    def given(self, sampler: Any) -> Optional[int]:
        """Return how many batches it gave."""
        return self._given.get(sampler)


class Epoch:
    """One call of a trainer's ``train_epoch`` or ``validate_epoch``."""

    def __init__(self, trainer: Any, training: bool, number: Any, loader: Any) -> None:
        self.trainer, self.training, self.loader = trainer, training, loader
        self.number = number if isinstance(number, int) else 0
        self.sampler = getattr(loader, "batch_sampler", None)
        self.counts = Counts()
        self.hints: Dict[str, str] = {}
        # What each rank reported: number of batches, then its counts. None: nothing was gathered yet.
        self.ranks: Optional[List[List[int]]] = None
        self.batches: Optional[int] = None

    @property
    def name(self) -> str:
        return f"{'training' if self.training else 'validation'} epoch {self.number}"


def running() -> Optional[Epoch]:
    """Return the epoch that is running in this process, the innermost one: a validation inside of a training epoch."""
    return _RUNNING.get()


def of(sampler: Any) -> Optional[Epoch]:
    """Return the running epoch if it reads its batches from this sampler."""
    epoch = running()
    return epoch if epoch is not None and epoch.sampler is sampler else None


def alone() -> bool:
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1


def gather_counts(epoch: Epoch, batches: int) -> List[List[int]]:
    """Gather every rank's number of batches and counts, by rank: one small collective an epoch."""
    epoch.ranks = async_sum.gathered([batches, *epoch.counts.numbers()], epoch.trainer.device)
    return epoch.ranks


def tell(site: Site, module: ModuleType, owner: Any) -> None:
    """One line at the end of an epoch about what was left out, split or repeated, and which setting decides."""
    track(site, owner)


def count(site: Site, module: ModuleType, owner: Any) -> None:
    """Count what a list of data leaves out when it is read."""
    jsonl.count(site, module, owner)


def track(site: Site, trainer: Any) -> None:
    """Know when an epoch of this class of trainers runs."""
    for name, training in (("train_epoch", True), ("validate_epoch", False)):
        name = name if hasattr(trainer, name) else "_" + name
        site.wrap(trainer, name, _Tracked(training, site.keep(jsonl.LeftOut)))


class _Tracked:
    def __init__(self, training: bool, left_out: jsonl.LeftOut) -> None:
        self.training, self._left_out = training, left_out

    def __call__(self, wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        outer = running()
        if outer is not None and outer.trainer is instance and outer.training == self.training:
            # Two patches track epochs; the outer one has begun this one.
            return wrapped(*args, **kwargs)
        given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        loader = "dataloader_train" if self.training else "dataloader_val"
        epoch = Epoch(instance, self.training, given.get("epoch"), given.get(loader, getattr(instance, loader, None)))
        with temporary.assigned(_RUNNING, epoch):
            result = wrapped(*args, **kwargs)
        _report(epoch, self._left_out)
        return result


def _report(epoch: Epoch, left_out: jsonl.LeftOut) -> None:
    if epoch.batches is None:
        # None of the samplers that are covered gave these batches.
        return
    if epoch.ranks is None and not alone() and epoch.training:
        gather_counts(epoch, epoch.batches)
    rows = epoch.ranks or [[epoch.batches, *epoch.counts.numbers()]]
    totals = Counts.summed(row[1:] for row in rows)
    read = left_out.of(getattr(epoch.loader, "dataset", None))
    where = f" on each of {len(rows)} ranks" if len(rows) > 1 else ""
    noun = "batch" if epoch.batches == 1 else "batches"
    line = f"{epoch.name}: {epoch.batches} {noun}{where}{changes(epoch, totals)}{_reasons(read)}"
    if not (totals.any() or read):
        log.debug(line)
    elif epoch.training:
        log.info(line)
    else:
        # The same about a validation again, every thousand steps, tells nobody anything.
        log.once(line, epoch.trainer)


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


def changes(epoch: Epoch, totals: Counts) -> str:
    """Return what was left out, split or repeated, and by which setting; "" where nothing was."""
    known = (("long", "max_token_length"), ("short", "min_token_length"), ("budget", "batch_size"))
    hints = {**{kind: f"dataset_conf.{name}" for kind, name in known}, **epoch.hints}
    samples = [f"{getattr(totals, k)} {_SAMPLES[k].format(**hints)}" for k in _SAMPLES if getattr(totals, k)]
    batches = [f"{getattr(totals, k)} {_BATCHES[k]}" for k in _BATCHES if getattr(totals, k)]
    parts = [f"utterances left out: {', '.join(samples)}"] if samples else []
    parts += [f"batches: {', '.join(batches)}"] if batches else []
    return "".join(f"; {part}" for part in parts)


def _reasons(read: Dict[str, int]) -> str:
    if not read:
        return ""
    each = ", ".join(f"{count} by {reason}" for reason, count in read.items())
    return f"; utterances not read from the list: {each} (raise the limit in dataset_conf to keep them)"
