"""Names and members of process groups."""

from __future__ import annotations

import hashlib
from typing import Any, List, NamedTuple, Sequence

from ddpfix.ranks.groups import internals


class Members(NamedTuple):
    """The ranks that train one model.

    Attributes:
        ranks: their global ranks, in the group's order.
    """

    name: str
    ranks: List[int]
    rank: int


def name_of(group: Any, ranks: Sequence[int]) -> str:
    """Return a short name for a process group, the same on all of its ranks; two groups of the same ranks differ."""
    return hashlib.sha1(f"{_torchs_name(group)}:{','.join(map(str, ranks))}".encode()).hexdigest()[:12]


def _torchs_name(group: Any) -> str:
    """Return the name under which torch keeps the keys of a group in its store, the same on all ranks therefore."""
    from torch.distributed import distributed_c10d

    return str(internals.table("pg_names").get(distributed_c10d.group.WORLD if group is None else group, ""))
