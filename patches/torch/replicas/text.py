"""The lines about replicas that are not the same."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple

from ddpfix.models.parameter_names import in_short
from ddpfix.ranks.groups.work import EQUALLY_OFTEN, LEAVE_NO_SYNC

from .fingerprint import Difference

_HINT = (
    "Both ranks applied the same gradients to them. Where that is not intended, find what changes a parameter on one"
    " rank alone, or trains model.module outside of DDP (DDPFIX_DIVERGENCE=error ends the job here; off: no comparison)"
)


class Where(NamedTuple):
    """Which replicas differ, and since when.

    Attributes:
        rank: the one that has compared itself.
        first: the one that it has compared itself with.
        before: the optimizer step after which they were compared before; 0 for none.
    """

    rank: int
    first: int
    name: str
    before: int
    step: int

    def __str__(self) -> str:
        when = f"between steps {self.before} and {self.step}" if self.before else f"in step {self.step}"
        return f"rank {self.rank} diverged from rank {self.first} in {self.name} {when}"


def diverged(where: Where, found: Difference, names: Sequence[str], count: int, cause: str) -> str:
    """Return the line about parameters that differ although both ranks moved them by the same gradients."""
    parts = [
        f"{len(names)} of {count} parameters, first {names[0]} (by {found.most:.2g} or more): {in_short(names)}",
        *(f"{name} {there} there, {own} here" for name, there, own in found.rates),
    ]
    return f"{where}: {'; '.join(parts)}. {cause}{_HINT}"


def line_search() -> str:
    """Return the first cause to check where LBFGS has taken the step."""
    return (
        "LBFGS chooses its steps by the loss that the closure returns, which is each rank's own: return the mean over"
        " the ranks (all_reduce the loss in the closure). Else: "
    )


def local_steps(number: int, place: str) -> str:
    """Return the first cause to check where optimizer steps have used gradients that were not averaged; "" for 0."""
    if not number:
        return ""
    return (
        f"{number} optimizer {'step' if number == 1 else 'steps'} before that used gradients of forwards under no_sync"
        f" alone ({place}), which DDP does not average. {LEAVE_NO_SYNC}. Else: "
    )


def averaged_apart(
    where: Where, names: Sequence[str], count: int, numbers: Tuple[Optional[int], Optional[int]], cause: str
) -> str:
    """Return the line about ranks that have averaged different numbers of times: this one and the first."""
    here, there = ("once" if number == 1 else f"{number} times" for number in numbers)
    return (
        f"{where}: {len(names)} of {count} parameters, first {names[0]}: {in_short(names)}. By optimizer step"
        f" {where.step} this rank has averaged {here}, rank {where.first} {there}: averages of different steps meet."
        f" {cause}{EQUALLY_OFTEN}"
    )


def never_averaged(name: str, steps: int, place: str, ranks: Tuple[int, int], differ: Sequence[str], count: int) -> str:
    """Return the line about a model whose every forward ran under ``no_sync``.

    Args:
        place: the user's line of the first of these forwards; "" where it is not known.
        ranks: this one, and the one that it was compared with.
    """
    return (
        f"no gradient of {name} was averaged in {steps} optimizer steps: each forward ran under"
        f" no_sync{f' ({place})' if place else ''}. Rank {ranks[0]} differs from rank {ranks[1]} since the first step,"
        f" in {len(differ)} of {count} parameters ({in_short(differ)}). {LEAVE_NO_SYNC}"
    )
