"""How long the collectives of a process group wait, in seconds."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, List, Optional

from ddpfix import devices
from ddpfix.groups import internals


def group_is_up() -> bool:
    """Return whether this process is in a process group, without an import of torch."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def shortest(group: Any = None) -> Optional[float]:
    """Return the shortest limit of a group's backends; None where none of them tells its own (mpi)."""
    return min((internals.limit_of(backend) for backend in _backends(group)), default=None)


def lengthen(limit: float) -> bool:
    """Have the default group wait longer, from the next collective on; a limit that is longer stays.

    Return whether no backend gives up before ``limit``. Where one would and cannot be changed, none is.
    """
    shorter = [backend for backend in _backends() if internals.limit_of(backend) < limit]
    if not all(map(_can_change, shorter)):
        return False
    for backend in shorter:
        internals.set_limit(backend, limit)
    return (shortest() or 0) >= limit


def _backends(group: Any = None) -> List[Any]:
    """Return the backends of a group that tell their limit."""
    import torch

    found: List[Any] = []
    for device in ("cpu", *devices.KINDS):
        # The names differ between releases, and a group has no backend for some devices.
        with contextlib.suppress(Exception):
            backend = internals.backend_of(group or internals.default_group(), torch.device(device))
            internals.limit_of(backend)
            if backend not in found:
                found.append(backend)
    return found


def _can_change(backend: Any) -> bool:
    """Return whether a new limit holds for collectives.

    gloo of torch 2.4.1 tells the new limit and gives up after the old one (pytorch issue 165422); 2.13.0 is the oldest
    on which it was seen to wait. NCCL reads its options for each collective.
    """
    from torch.torch_version import TorchVersion, __version__

    holds = {"ProcessGroupNCCL": "2.2", "ProcessGroupGloo": "2.13"}.get(type(backend).__name__)
    return holds is not None and internals.takes_limit(backend) and TorchVersion(__version__) >= holds
