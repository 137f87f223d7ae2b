"""Ranks with different numbers of batches finish an epoch together (upstream 1539, 2006).

Ranks make their batches from their own share of the data, so they cannot know each other's numbers: they gather them
once an epoch. The shorter ones then repeat some of their batches (``pad``), or all stop at the shortest (``stop``).
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable, Iterator, List

from ddpfix.patching.site import PatchError, Site
from ddpfix.uneven.loader import Held, policy
from ddpfix.user_code import module_of

from . import epochs
from .batches import Batch, evened


def even(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on a class of samplers: what it gives in an epoch."""
    _even(site, [owner])


def even_module(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on all samplers of a module."""
    samplers = _samplers(module)
    if not samplers:
        raise PatchError(f"{module.__name__} has no samplers any more")
    _even(site, samplers)


def trainer(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on a trainer: whose epoch runs."""
    epochs.track(site, owner)


def _even(site: Site, samplers: List[Any]) -> None:
    stop = policy(site, "FunASR") == "stop"
    for kind in samplers:
        site.wrap_hot(kind, "__iter__", _evened(stop, site.keep(Held), site.keep(epochs.Samplers)))


def _samplers(module: ModuleType) -> List[Any]:
    own = [kind for kind in vars(module).values() if inspect.isclass(kind) and module_of(kind) == module.__name__]
    return [kind for kind in own if "__iter__" in vars(kind) and "Sampler" in kind.__name__]


def _evened(stop: bool, held: Held, known: epochs.Samplers) -> Callable[..., Any]:
    def make(original: Any) -> Callable[..., Any]:
        def __iter__(self: Any) -> Iterator[Batch]:
            epoch = epochs.of(self)
            if epoch is None or epochs.alone():
                return original(self)  # type: ignore[no-any-return]
            held.hold(self)
            return iter(_agreed(epoch, known, self, list(original(self)), stop))

        return __iter__

    return make


def _agreed(epoch: epochs.Epoch, known: epochs.Samplers, sampler: Any, batches: List[Batch], stop: bool) -> List[Batch]:
    """Return this rank's batches, as many as on all others; RuntimeError on every rank: one has nothing to train on."""
    rows = epoch.gather(len(batches))
    numbers = [row["batches"] for row in rows]
    empty = [str(rank) for rank, number in enumerate(numbers) if not number]
    resumed = not any(numbers) and getattr(sampler, "start_step", 0) > 0
    if empty and epoch.training and not resumed:
        few = "; the list has fewer utterances than ranks, or its limits (max_source_length) leave none"
        raise RuntimeError(
            f"ddpfix: {epoch.name}: {len(empty)} of {len(numbers)} ranks have no batch (rank {', '.join(empty)})"
            f"{epoch.changes() or few}. Use fewer ranks, or raise the limit."
        )
    target = min(numbers) if stop and not empty else max(numbers)
    if target and not batches:
        # Only in validation, where fewer samples than ranks are no reason to stop a training run.
        batches = [[min(range(len(sampler.dataset)), key=sampler.dataset.get_source_len)]]
    epoch.batches = target
    for row, number in zip(rows, numbers):
        row["repeated"] += max(0, target - number)
        row["cut"] += max(0, number - target)
    known.counted(sampler, target)
    return evened(batches, target, epoch.number)
