"""Replicas that are not the same: how the snapshots of two ranks differ, and what is said of it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix.rules.differences import EQUALLY_OFTEN, LEAVE_NO_SYNC
from ddpfix.rules.finding import in_short

_HINT = (
    "Both ranks applied the same gradients: look for code that changes a parameter on one rank only, or trains"
    " model.module outside DDP (DDPFIX_DIVERGENCE=error ends the job here)"
)


class Snapshot(NamedTuple):
    """Parameters, gradients and hyperparameters of one rank after one step.

    Attributes:
        step: how many steps the optimizer has done.
        forwards: how many forwards have prepared a reduction.
        names: a digest of the names of the parameters.
        sums: of each parameter the sum of its bits.
        gradients: the same of each gradient by which the step moved it.
        samples: of each parameter some elements.
        rates: the hyperparameters that are numbers, by ``name of group``.
        averaged: how many reductions DDP has ended; None where nobody counts them.
    """

    step: int
    forwards: int
    names: str
    sums: List[int]
    gradients: List[int]
    samples: List[List[float]]
    rates: Dict[str, str]
    averaged: Optional[int] = None


def unequal(there: Snapshot, here: Snapshot) -> List[int]:
    """Return the numbers of the parameters that differ, of two ranks that have moved the same ones; else none."""
    if there.names != here.names or there.gradients == here.gradients:
        return []
    return [number for number, pair in enumerate(zip(there.sums, here.sums)) if pair[0] != pair[1]]


def has_averaged_apart(there: Snapshot, here: Snapshot) -> bool:
    """Return whether DDP has averaged different numbers of times on two ranks that differ by the same step.

    Each average is one of all ranks: then gradients of different steps have met, or are added up.
    """
    counted = there.averaged is not None and here.averaged is not None and there.averaged != here.averaged
    return counted and bool(unequal(there, here))


class Difference(NamedTuple):
    """How this rank differs from the first one of its group.

    Attributes:
        most: the largest difference that the samples of these parameters show; NaN where one of them is.
        rates: (name, there, here) of each hyperparameter that differs.
    """

    numbers: List[int]
    most: float
    rates: List[Tuple[str, str, str]]


def difference(there: Snapshot, here: Snapshot) -> Optional[Difference]:
    """Return how two ranks differ in the same step; None where their steps cannot be compared.

    They can where both have moved the same parameters by the same gradients, after equally many forwards: then DDP has
    averaged these gradients, and what differs is not of a rank's own by them.
    """
    if (there.names, there.forwards, there.gradients) != (here.names, here.forwards, here.gradients):
        return None
    numbers = [number for number, pair in enumerate(zip(there.sums, here.sums)) if pair[0] != pair[1]]
    distances = [
        abs(other - own) for number in numbers for other, own in zip(there.samples[number], here.samples[number])
    ]
    rates = [
        (name, there.rates.get(name, "none"), here.rates.get(name, "none"))
        for name in sorted({*there.rates, *here.rates})
        if there.rates.get(name) != here.rates.get(name)
    ]
    most = float("nan") if any(each != each for each in distances) else max(distances, default=0.0)
    return Difference(numbers, most, rates)


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


def describe_divergence(where: Where, found: Difference, names: Sequence[str], count: int, cause: str) -> str:
    """Return the line about parameters that differ although both ranks moved them by the same gradients."""
    parts = [
        f"{len(names)} of {count} parameters, first {names[0]} (by {found.most:.2g} or more): {in_short(names)}",
        *(f"{name} {there} there, {own} here" for name, there, own in found.rates),
    ]
    return f"{where}: {'; '.join(parts)}.\n{cause}{_HINT}"


def local_steps(number: int, place: str) -> str:
    """Return the first cause to check where optimizer steps have used gradients that were not averaged; "" for 0."""
    if not number:
        return ""
    return (
        f"{number} optimizer {'step' if number == 1 else 'steps'} before that used only gradients of forwards under"
        f" no_sync ({place}), which DDP does not average.\n{LEAVE_NO_SYNC}.\nOtherwise: "
    )


def describe_averages(
    where: Where, names: Sequence[str], count: int, numbers: Tuple[Optional[int], Optional[int]]
) -> str:
    """Return the line about ranks that have averaged different numbers of times: this one and the first."""
    here, there = ("once" if number == 1 else f"{number} times" for number in numbers)
    return (
        f"{where}: {len(names)} of {count} parameters, first {names[0]}: {in_short(names)}.\nBy optimizer step"
        f" {where.step} this rank has averaged {here}, rank {where.first} {there}: their averages mix different"
        f" steps.\n{EQUALLY_OFTEN}"
    )


# What the program did with forwards that DDP has not averaged, by the name in its code; {} is the user's line.
NEVER_AVERAGED = {
    "no_sync": "Its forward ran under no_sync{}. Leave no_sync for the last backward before a step",
    "accumulate": "Its forward ran under accumulate{}. Use a single accumulate(a, b) for all models, not one for each",
    "require_backward_grad_sync": (
        "Its forward ran with require_backward_grad_sync=False{}: set it before the forward, which reads it"
    ),
    "backward": "It ran inside the forward{}, before DDP was ready to average it: call backward after the forward",
    "": "No collective ran between its forward and the step",
}


def describe_unreduced(name: str, steps: int, first: int, cause: str, place: str) -> str:
    """Return the line about a model whose optimizer steps all used gradients that were not averaged.

    Args:
        first: the rank that this one was compared with.
        cause: a key of :data:`NEVER_AVERAGED`.
        place: the user's line; "" if it is not known.
    """
    return (
        f"this {name} differs from rank {first}'s: in {steps} optimizer steps, DDP never averaged the last backward."
        f" {NEVER_AVERAGED[cause].format(f' ({place})' if place else '')}"
    )
