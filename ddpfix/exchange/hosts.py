"""Which host a rank is on, for the messages about ranks that differ: also of one that has no ddpfix to say so.

A rank with ddpfix leaves its host's name, and which ranks its launcher started beside it, with its facts. Of a rank
without ddpfix the host is known from its neighbours on that host, or from gloo, which puts each rank's host into the
store when it connects the ranks. Nothing here is read as long as the ranks agree.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Dict, List, Optional, Sequence

from ddpfix.exchange.keys import has
from ddpfix.system import System

# Ranks of one host have numbers close to each other: how far from a rank its neighbours are looked for.
_NEAR = 16
# Where gloo leaves a rank's place in the default group's store; older releases of torch have no device in it.
_GLOO = ("cpu//0/", "0/")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def place(rank: int) -> Dict[str, Any]:
    """Return the name of this host, and the first and the last of its ranks as far as the launcher tells them."""
    first, last = rank, rank
    # Torch elastic alone is known to number the ranks of a host one after the other: mpirun may deal them out.
    with contextlib.suppress(KeyError, ValueError):
        local, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        if "TORCHELASTIC_RUN_ID" in os.environ and 0 <= local < size:
            first, last = rank - local, rank - local + size - 1
    return {"host": System.host(), "ranks": [first, last]}


def sentence(store: Any, records: Any, ranks: Sequence[int]) -> str:
    """Return ``" Rank 1 is on host node-b."``, by the records that ranks have left; empty where none is known."""
    by_host: Dict[str, List[int]] = {}
    for rank in ranks:
        host = None
        # The process that holds the store may be about to end, and the message is needed more than the host.
        with contextlib.suppress(Exception):
            host = _said(records, rank) or _known_to_gloo(store, rank)
        if host:
            by_host.setdefault(host, []).append(rank)
    return "".join(f" {_are(ranks)} on host {host}." for host, ranks in by_host.items())


def _are(ranks: Sequence[int]) -> str:
    return f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))} are"


def _said(records: Any, rank: int) -> Optional[str]:
    """Return the host that the rank itself has left, or one of its neighbours."""
    for other in sorted(range(max(0, rank - _NEAR), rank + _NEAR), key=lambda other: abs(other - rank)):
        if not has(records, str(other)):
            continue
        found = System.loads(records.get(str(other))).get("place")
        if found is not None and found["ranks"][0] <= rank <= found["ranks"][1]:
            return str(found["host"])
    return None


def _known_to_gloo(store: Any, rank: int) -> Optional[str]:
    """Return the host that gloo has left for a rank: the length of the name in eight bytes, and then the name."""
    for prefix in _GLOO:
        if hasattr(store, "check") and store.check([f"{prefix}{rank}"]):
            value = bytes(store.get(f"{prefix}{rank}"))
            name = value[8 : 8 + int.from_bytes(value[:8], "little")]
            text = name.decode("ascii", "replace")
            return text if _NAME.fullmatch(text) else None
    return None
