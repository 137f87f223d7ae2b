"""What torch keeps of process groups under names that are not public, and how many collectives it counts in each.

gloo counts what goes from one rank to another as well: a rank with fewer does not owe one to the others.
"""

from __future__ import annotations

import contextlib
import hashlib
from datetime import timedelta
from typing import Any, Dict, List, NamedTuple, Sequence


def default_group() -> Any:
    """Return the process group of all ranks; RuntimeError or ValueError where there is none."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_group()


def is_torchs(group: Any) -> bool:
    """Return whether torch made a group (None: the default one) and has its ranks; a program's own may have others."""
    from torch import distributed

    if group is None:
        group = distributed.group.WORLD
    known = type(group) is distributed.ProcessGroup and group in table("pg_group_ranks")
    return known and distributed.get_backend(group) != "fake"


def group_store() -> Any:
    """Return the store of the default group, or None where there is none, or no ranks that are known to read it."""
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._get_default_store() if is_torchs(None) else None
    except (RuntimeError, ValueError, AttributeError, KeyError):
        return None


def is_programs() -> bool:
    """Return whether the program gave its group a store of its own (``init_process_group(store=...)``)."""
    from torch.distributed import distributed_c10d

    # torch writes env:// there where it was given nothing at all.
    return getattr(distributed_c10d, "_default_pg_init_method", "") is None


def table(name: str) -> Dict[Any, Any]:
    """Return what torch knows by group (``pg_names``, ``pg_group_ranks``)."""
    from torch.distributed import distributed_c10d

    found: Dict[Any, Any] = getattr(distributed_c10d._world, name)
    return found


def collectives_of(group: Any) -> int:
    """Return how many collectives torch has counted in a group."""
    return int(group._get_sequence_number_for_group())


def backend_of(group: Any, device: Any) -> Any:
    """Return the backend of a group for a device."""
    return group._get_backend(device)


def has_gloo(group: Any) -> bool:
    """Return whether gloo has connected the ranks of a group, for tensors on the CPU."""
    import torch

    try:
        return type(backend_of(group, torch.device("cpu"))).__name__ == "ProcessGroupGloo"
    except RuntimeError:
        # It has no backend for the CPU.
        return False


def limit_of(backend: Any) -> float:
    """Return the seconds that collectives of a backend wait."""
    return float(backend.options._timeout.total_seconds())


def takes_limit(backend: Any) -> bool:
    """Return whether a backend can be given another limit."""
    return hasattr(backend, "_set_default_timeout")


def set_limit(backend: Any, seconds: float) -> None:
    """Have the collectives of a backend wait so long."""
    backend._set_default_timeout(timedelta(seconds=seconds))


def counts() -> Dict[str, int]:
    """Return the number of collectives by group, as far as its backend tells; the key is the same on all its ranks."""
    members = table("pg_group_ranks")
    found: Dict[str, int] = {}
    for group, name in list(table("pg_names").items()):
        with contextlib.suppress(Exception):
            ranks = hashlib.sha1(",".join(map(str, sorted(members[group]))).encode()).hexdigest()[:12]
            found[f"{name} {ranks}"] = collectives_of(group)
    return found


def groups() -> List[Any]:
    """Return the groups that this rank is in."""
    return list(table("pg_names"))


class Members(NamedTuple):
    """The ranks that train one model: global ranks, in the order of their group."""

    name: str
    ranks: List[int]
    rank: int


def name_of(group: Any, ranks: Sequence[int]) -> str:
    """Return a short name for a process group, the same on all of its ranks; two groups of the same ranks differ."""
    from torch.distributed import distributed_c10d

    # Under this name torch keeps the keys of a group in its store.
    name = table("pg_names").get(distributed_c10d.group.WORLD if group is None else group, "")
    return hashlib.sha1(f"{name}:{','.join(map(str, ranks))}".encode()).hexdigest()[:12]
