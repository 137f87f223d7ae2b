"""The programs that the README's command runs: few that have between them every feature that a program can have."""

from __future__ import annotations

from functools import lru_cache
from typing import FrozenSet, Hashable, Set

from tests.late.loops import kinds
from tests.late.loops.kinds import Kind


def features(kind: Kind) -> Set[Hashable]:
    """What tells a program from others: theme with outcomes, causes of errors, what it needs, how it is judged."""
    traits: Set[Hashable] = {("outcome", kind.theme, kind.plain, kind.ours)}
    traits |= {("cause", kind.cause), ("plain cause", kind.plain_cause)}
    traits.add(("judged", kind.traced, kind.counted, kind.activated, kind.close > 0, kind.close_three))
    traits |= {("needs", need) for need in kind.needs}
    if kind.three:
        traits.add(("three", kind.plain, kind.ours))
    return traits


@lru_cache(maxsize=None)
def names() -> FrozenSet[str]:
    """A cover of all features, the cheapest first where several programs add as many."""
    known = kinds.load()
    of = {name: features(kind) for name, kind in known.items()}
    left: Set[Hashable] = set().union(*of.values())
    chosen: Set[str] = set()
    while left:
        best = max(sorted(known), key=lambda name: len(of[name] & left) / cost(known[name]))
        chosen.add(best)
        left -= of[best]
    return frozenset(chosen)


def cost(kind: Kind) -> int:
    """Roughly how long a program takes: three ranks are a second run, and one that hangs waits for a time limit."""
    return (3 if kind.plain == "hangs" else 1) * (2 if kind.three else 1)
