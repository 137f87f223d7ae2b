"""Whether all ranks of a group read the same samples: the beginning of one pass, compared through the store."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Optional, Sequence

from ddpfix import log
from ddpfix.ranks.store import default_store, has, keys, put

from . import readings, sharding

# Steps after which nobody looks any more for what other ranks have found.
_PATIENCE = 1 << 16


def are_divided(ranks: Sequence[int]) -> bool:
    """Whether some of these ranks, not all, form a group: they may share samples on purpose (tensor parallelism)."""
    from torch.distributed import distributed_c10d

    world = getattr(distributed_c10d, "_world", distributed_c10d)
    groups = getattr(world, "pg_group_ranks", None) or getattr(world, "_pg_group_ranks", {})
    held = set(ranks)
    return any(1 < len(group) < len(held) and held.issuperset(group) for group in groups.values())


class Comparison:
    """The beginning of one pass, compared with that of the first rank of a group.

    Args:
        name: the same on all ranks.
        ranks: of the group whose gradients are averaged.
        reading: the pass.
    """

    def __init__(self, name: str, ranks: Sequence[int], reading: readings.Reading) -> None:
        self._name, self._ranks, self._reading = name, ranks, reading
        self._line = _described(reading, len(ranks))
        # The digest, and the steps since it is known.
        self._here: Optional[str] = None
        self._steps = 0

    def is_done(self) -> bool:
        """Called after each step: do what can be done without waiting; returns whether nothing is left to do."""
        if self._here is None:
            if not self._reading.is_over():
                return False
            self._here = beginning(self._reading)
        self._steps += 1
        if self._steps & (self._steps - 1):
            return False
        store = default_store()
        if store is None or not self._here or self._steps > _PATIENCE:
            return True
        own = keys(store, self._name)
        return self._lead(own) if sharding.own_rank() == self._ranks[0] else self._follow(own, self._here)

    def _lead(self, own: Any) -> bool:
        if self._steps == 1:
            put(own, "digest", str(self._here))
        found = has(own, "same")
        if found:
            log.on_every_rank(self._line)
        return found

    def _follow(self, own: Any, here: str) -> bool:
        if not has(own, "digest"):
            return False
        # Whoever comes last knows that all are equal; ranks that share samples on purpose are a part of them.
        if own.get("digest").decode() == here and own.add("equal", 1) == len(self._ranks) - 1:
            put(own, "same", "")
        return True


def _described(reading: readings.Reading, number: int) -> str:
    fix = (
        "Give each rank its own part: DataLoader(..., sampler=DistributedSampler(dataset)), or by its number in an"
        " iterable dataset"
    )
    if reading.sampler is not None:
        name = type(reading.sampler).__name__
        fix = f"Its {name} is to have the number of ranks and this rank's own (num_replicas, rank)"
    return (
        f"all {number} ranks train on the same samples of a {reading.data} in the same order, and so learn no more than"
        f" one rank. {fix} {readings.OFF}"
    )


def beginning(reading: readings.Reading) -> str:
    """A digest of how a pass began; empty where ranks cannot be compared by it.

    Batches that are all alike (made up to measure speed, or a single one) say nothing.
    """
    order = reading.order()
    if reading.unknown or not reading.whole or None in order or len(set(reading.seen)) < 2:
        return ""
    text = json.dumps([order, reading.seen])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
