"""How many collectives torch counts in each group of this rank.

gloo counts what goes from one rank to another as well: a rank with fewer does not owe one to the others.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, Dict, List, Mapping, Optional

from ddpfix.ranks.groups import internals


def counts() -> Dict[str, int]:
    """Return the number of collectives by group, as far as its backend tells; the key is the same on all its ranks."""
    members = internals.table("pg_group_ranks")
    found: Dict[str, int] = {}
    for group, name in list(internals.table("pg_names").items()):
        with contextlib.suppress(Exception):
            ranks = hashlib.sha1(",".join(map(str, sorted(members[group]))).encode()).hexdigest()[:12]
            found[f"{name} {ranks}"] = internals.collectives_of(group)
    return found


def ended() -> Optional[int]:
    """Return how many collectives of the default group have ended, as torch's flight recorder has it; None if unknown.

    It numbers the groups in its own way: the one that has begun as many as the default group is taken, if there is one.
    """
    with contextlib.suppress(Exception):
        begun = internals.collectives_of(internals.default_group())
        found = [completed for enqueued, completed in internals.recorded() if enqueued == begun]
        if len(found) == 1 and found[0] >= 0:
            return found[0]
    return None


def groups() -> List[Any]:
    """Return the groups that this rank is in."""
    return list(internals.table("pg_names"))


def is_beyond(ours: Mapping[str, int], theirs: Mapping[str, int]) -> bool:
    """Return whether torch counts more of a common group for us than for another rank."""
    return any(count > theirs[name] for name, count in ours.items() if name in theirs)
