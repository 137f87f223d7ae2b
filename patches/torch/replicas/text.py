"""The lines about replicas that are not the same."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple

from ddpfix.rules.differences import EQUALLY_OFTEN, LEAVE_NO_SYNC
from ddpfix.rules.names import in_short

from .fingerprint import Difference

_HINT = (
    "Both ranks applied the same gradients: look for code that changes a parameter on one rank only, or trains"
    " model.module outside DDP (DDPFIX_DIVERGENCE=error ends the job here)"
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
    return f"{where}: {'; '.join(parts)}.\n{cause}{_HINT}"


def line_search() -> str:
    """Return the first cause to check where LBFGS has taken the step."""
    return (
        "LBFGS chooses its steps by the loss that the closure returns, which each rank computes alone: all_reduce it"
        " there.\nOtherwise: "
    )


def local_steps(number: int, place: str) -> str:
    """Return the first cause to check where optimizer steps have used gradients that were not averaged; "" for 0."""
    if not number:
        return ""
    return (
        f"{number} optimizer {'step' if number == 1 else 'steps'} before that used only gradients of forwards under"
        f" no_sync ({place}), which DDP does not average.\n{LEAVE_NO_SYNC}.\nOtherwise: "
    )


def averaged_apart(
    where: Where, names: Sequence[str], count: int, numbers: Tuple[Optional[int], Optional[int]], cause: str
) -> str:
    """Return the line about ranks that have averaged different numbers of times: this one and the first."""
    here, there = ("once" if number == 1 else f"{number} times" for number in numbers)
    return (
        f"{where}: {len(names)} of {count} parameters, first {names[0]}: {in_short(names)}.\nBy optimizer step"
        f" {where.step} this rank has averaged {here}, rank {where.first} {there}: their averages mix different"
        f" steps.\n{cause}{EQUALLY_OFTEN}"
    )


def unreduced(name: str, steps: int, first: int, cause: str) -> str:
    """Return the line about a model whose optimizer steps all used gradients that were not averaged.

    Args:
        first: the rank that this one was compared with.
        cause: why, and what to do, in sentences.
    """
    return (
        f"this {name} differs from rank {first}'s: in {steps} optimizer steps, DDP never averaged the last backward."
        f" {cause}"
    )


NO_COLLECTIVE = "No collective ran between its forward and the step"


def under_no_sync(place: str) -> str:
    """Return the cause that its forward ran under ``no_sync``; ``place`` is the user's line, "" if it is not known."""
    where = f" ({place})" if place else ""
    return f"Its forward ran under no_sync{where}. Leave no_sync for the last backward before a step"


def accumulated(place: str) -> str:
    """Return the cause that its forward ran under ``no_sync``, and the program uses accelerate's ``accumulate``."""
    return f"Its forward ran under accumulate ({place}). Use a single accumulate(a, b) for all models, not one for each"


def flag_is_off(place: str) -> str:
    """Return the cause that the program itself has set DDP's attribute, at a line."""
    return f"Its forward ran with require_backward_grad_sync=False ({place}): set it before the forward, which reads it"


def backward_inside(place: str) -> str:
    """Return the cause that a backward ran within the forward that the user calls at a line."""
    return f"It ran inside the forward ({place}), before DDP was ready to average it: call backward after the forward"
