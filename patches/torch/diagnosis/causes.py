"""The causes for which parameters got no gradient, by what is known of the step (:mod:`.evidence`)."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..pipeline import ddp
from .evidence import Evidence
from .parameter_groups import Group, modules

# What attributes and configurations call the rate at which whole layers are skipped.
_RATE = re.compile(r"layer_?drop|stochastic_depth", re.IGNORECASE)


class Cause(NamedTuple):
    """Why some parameters got no gradient."""

    kind: str
    text: str
    groups: List[Group]


SKIPPED = "layers skipped at random"
OUTSIDE = "an output that is not part of the loss"
NEVER = "never ran"
BRANCH = "not used in this step"
LOST = "ran, but its result is not used"
BESIDE = "its module ran without it"
UNKNOWN = "unknown"


def find(model: ddp.Wrapped, evidence: Evidence, groups: Sequence[Group]) -> List[Cause]:
    """Return the causes, each with its parameters; the one with the most parameters comes first."""
    by_kind: Dict[Tuple[str, str], List[Group]] = {}
    finder = _Finder(model, evidence)
    for group in groups:
        by_kind.setdefault(finder.kind(group), []).append(group)
    causes = [Cause(kind, finder.text(kind, detail, held), held) for (kind, detail), held in by_kind.items()]
    return sorted(causes, key=lambda cause: -sum(len(group.names) for group in cause.groups))


class _Finder:
    def __init__(self, model: ddp.Wrapped, evidence: Evidence) -> None:
        self._model, self._evidence = model, evidence
        self._numbers = {name: number for number, name in enumerate(model.names)}
        self._modules: Dict[str, Any] = dict(model.wrapper.module.named_modules())

    def kind(self, group: Group) -> Tuple[str, str]:
        """Return the kind of a cause, and what sets it apart from others of its kind."""
        numbers = {self._numbers[name] for name in group.names if name in self._numbers}
        for name, behind in self._evidence.outside.items():
            if numbers <= behind:
                return OUTSIDE, name
        ran = self._ran(group, self._evidence.ran)
        rate = self.rate(group)
        if rate and ran is not True:
            return SKIPPED, rate
        if ran is True:
            return (LOST if group.whole else BESIDE), ""
        noted = self._evidence.ran is not None
        if noted and self._ran(group, self._evidence.ran_before) is False:
            return NEVER, ""
        if self._evidence.steps > 1:
            return BRANCH, ""
        return UNKNOWN, ""

    def _ran(self, group: Group, ran: Optional[Set[int]]) -> Optional[bool]:
        """Return whether the module that holds the parameters, or one below it, ran; None if that is not known.

        Some modules are never called, and their parameters are used by the one above (MultiheadAttention's projection).
        """
        if ran is None:
            return None
        holders = {name.rpartition(".")[0] for name in group.names}
        return any(id(self._modules.get(holder)) in ran for holder in holders)

    def rate(self, group: Group) -> str:
        """Return the module that skips layers, and its rate, if the parameters are of numbered layers below it."""
        if not all(any(part.isdigit() for part in name.split(".")) for name in group.names):
            return ""
        parts = group.module.split(".")
        if not any(part.isdigit() for part in parts):
            # All layers of a list are one group.
            parts = group.names[0].split(".")[:-1]
        for count in range(len(parts), -1, -1):
            module = self._modules.get(".".join(parts[:count]))
            for name, rate in _rates(module) if module is not None and module.training else ():
                return f"{type(module).__name__} skips layers at random ({name} {rate:g})"
        return ""

    def text(self, kind: str, detail: str, groups: Sequence[Group]) -> str:
        """Return a sentence on a cause."""
        names, steps = modules(groups), self._evidence.steps
        so_far = "in the first step" if steps == 1 else f"in any of the {steps} steps so far"
        earlier = "the step" if steps == 2 else f"the {steps - 1} steps"
        return {
            SKIPPED: f"{detail}, {names} in this step",
            OUTSIDE: f"{detail} is not part of the loss, and nothing else uses {names}",
            NEVER: f"{names} did not run {so_far}",
            BRANCH: f"{earlier} before used {names}, this one did not (a branch that was not taken)",
            LOST: f"{names} ran, but the loss does not depend on the result (detach(), no_grad(), or dropped)",
            BESIDE: f"{names}: not used, although the module that holds it ran",
            UNKNOWN: f"the graph of the loss does not reach {names}",
        }[kind]


def skips_layers(model: ddp.Wrapped, evidence: Evidence, groups: Sequence[Group]) -> str:
    """Return the module that skips layers at random, and its rate, if some parameters are of its layers; "" if not."""
    finder = _Finder(model, evidence)
    return next((rate for rate in map(finder.rate, groups) if rate), "")


def _rates(module: Any) -> Iterator[Tuple[str, float]]:
    """Yield the rates above 0 of a module, or in its configuration."""
    for holder in (module, getattr(module, "config", None)):
        for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
            rate = max(value, default=0) if isinstance(value, (list, tuple)) and _are_numbers(value) else value
            if _RATE.search(name) and isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate > 0:
                yield name, float(rate)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)
