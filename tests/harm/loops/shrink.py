"""Makes the program of a breach simpler, as long as it stays that breach."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any, Callable, Dict, Iterator, List

from tests.harm.loops.plan import Plan, Use

SHORTER: Dict[str, List[Any]] = {"steps": [1, 2, 3], "branches": [0, 1], "heads": [1, 2]}
KEPT = ("seed", "ranks", "uses", "pattern")


def shrunk(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    """The simplest plan that is found one change after the other.

    Args:
        plan: that of a breach.
        still: whether a plan is one as well.
    """
    changed = True
    while changed:
        changed = False
        for simpler in _simpler(plan):
            if still(simpler):
                plan, changed = simpler, True
                break
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Plans with one part less each."""
    simplest = Plan(plan.seed, plan.ranks)
    for each in fields(plan):
        value = getattr(plan, each.name)
        if each.name in KEPT:
            continue
        for other in SHORTER.get(each.name, [getattr(simplest, each.name)]):
            if other != value and not (each.name in SHORTER and other > value):
                yield _with(plan, each.name, other)
        if isinstance(value, dict):
            yield from (_with(plan, each.name, {k: v for k, v in value.items() if k != key}) for key in value)
        if isinstance(value, list):
            yield from (_with(plan, each.name, value[:at] + value[at + 1 :]) for at in range(len(value)))
    for rank, of_rank in enumerate(plan.uses):
        for call, use in enumerate(of_rank):
            if use != _everything(plan):
                uses = copy.deepcopy(plan.uses)
                uses[rank][call] = _everything(plan)
                yield _with(plan, "uses", uses)


def _everything(plan: Plan) -> Use:
    return list(range(plan.branches)), list(range(plan.heads))


def _with(plan: Plan, name: str, value: Any) -> Plan:
    """The plan with another value, and no use of parts that it has no more."""
    other = copy.deepcopy(plan)
    setattr(other, name, value)
    other.tied = other.tied and other.branches > 1
    branches, heads = _everything(other)
    other.uses = [
        [([n for n in use[0] if n in branches], [n for n in use[1] if n in heads] or heads[:1]) for use in of_rank]
        for of_rank in other.uses
    ]
    return other
