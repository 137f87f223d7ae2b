"""Why parameters got no gradient, decided from their modules and from what passes (forward, backward) have shown."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpfix.rules.finding import Finding
from ddpfix.rules.no_gradient.names import Group, modules

SKIPPED = "layers skipped at random"
OUTSIDE = "an output that is not part of the loss"
NEVER = "never ran"
BRANCH = "not used in this step"
LOST = "ran, but its result is not used"
BESIDE = "its module ran without it"
UNKNOWN = "unknown"
# Of DDP's errors, where not one of these is the cause: backward was called again in a step, the flag was set in vain,
# the graph is said to be static, or a parameter was ready twice.
REPEATED, HIDDEN, STATIC, TWICE = "repeated backward", "behind an output", "static graph", "ready twice"
# Words, and lines to paste.
Cure = Tuple[str, Sequence[str]]
# What attributes and configurations call the rate at which whole layers are skipped.
_RATE = re.compile(r"layer_?drop|stochastic_depth", re.IGNORECASE)


def finding(kind: str, rank: int, head: str, causes: Sequence[str], cures: Sequence[Cure]) -> Finding:
    """Return what is said of one of DDP's errors, with its causes, and its cures at the lowest price first."""
    advice = [
        part for words, lines in cures for part in (f"{words}:" if lines else words, *(f"    {x}" for x in lines))
    ]
    return Finding(kind, [rank], head, "\n".join(causes), "\n".join(advice))


class Seen(NamedTuple):
    """What is known of the parameters of a group.

    Attributes:
        passes: how many there were.
        missing: in how many of them the parameters got no gradient; 0: in the last one, and others are not known.
        ran: whether a module that holds them ran in those; None where that was not recorded.
        ever: whether it ran in any pass.
        output: an output that leads to them, and that the loss leaves out; "" for none.
        skips: the module that skips them at random as its layers, with its rate; "" for none.
    """

    passes: int
    missing: int = 0
    ran: Optional[bool] = None
    ever: Optional[bool] = None
    output: str = ""
    skips: str = ""


class Cause(NamedTuple):
    """Why some parameters got no gradient."""

    finding: Finding
    groups: List[Group]


def holders(modules: Mapping[str, Any], group: Group) -> List[Any]:
    """Return the modules that hold parameters of a group.

    Some modules are never called, and their parameters are used by the one above (MultiheadAttention's projection).
    """
    return [modules.get(name) for name in {name.rpartition(".")[0] for name in group.names}]


def skips(modules: Mapping[str, Any], group: Group) -> str:
    """Return the module that skips layers, and its rate, if the parameters are of numbered layers below it; else ""."""
    if not all(any(part.isdigit() for part in name.split(".")) for name in group.names):
        return ""
    parts = group.module.split(".")
    if not any(part.isdigit() for part in parts):
        # All layers of a list are one group.
        parts = group.names[0].split(".")[:-1]
    for count in range(len(parts), -1, -1):
        module = modules.get(".".join(parts[:count]))
        for name, rate in _rates(module) if module is not None and module.training else ():
            return f"{type(module).__name__} skips layers at random ({name} {rate:g})"
    return ""


def _rates(module: Any) -> Iterator[Tuple[str, float]]:
    """Yield the rates above 0 of a module, or in its configuration."""
    for holder in (module, getattr(module, "config", None)):
        for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
            given = value if isinstance(value, (list, tuple)) else [value]
            if _RATE.search(name) and all(isinstance(each, (int, float)) for each in given):
                rate = max(given, default=0)
                if rate > 0 and not isinstance(rate, bool):
                    yield name, float(rate)


def judge(seen: Sequence[Tuple[Group, Seen]]) -> List[Cause]:
    """Return the causes, each with its parameters; the one with the most parameters comes first."""
    alike: Dict[Tuple[str, str, int], List[Tuple[Group, Seen]]] = {}
    for group, each in seen:
        kind = _kind(group, each)
        detail = {OUTSIDE: each.output, SKIPPED: each.skips}.get(kind, "")
        alike.setdefault((kind, detail, each.missing), []).append((group, each))
    found = []
    for (kind, _, _), pairs in alike.items():
        groups = [group for group, _ in pairs]
        names = modules(groups)
        found.append(Cause(Finding(kind, (), names, _sentence(kind, pairs[0][1], names)), groups))
    return sorted(found, key=lambda cause: -sum(len(group.names) for group in cause.groups))


def _kind(group: Group, seen: Seen) -> str:
    if seen.output:
        return OUTSIDE
    if seen.skips and not seen.ran:
        return SKIPPED
    if seen.ran:
        return LOST if group.whole else BESIDE
    if seen.ever is False:
        return NEVER
    return BRANCH if seen.passes > 1 else UNKNOWN


def _sentence(kind: str, seen: Seen, names: str) -> str:
    passes, missing = seen.passes, seen.missing
    earlier = "the step" if passes == 2 else f"the {passes - 1} steps"
    when, so_far = "this step", "the first step" if passes == 1 else f"any of the {passes} steps so far"
    branch = f"{earlier} before used {names}, this one did not"
    if missing:
        when, so_far = f"{missing} of {passes} passes", f"any of the {passes} passes"
        branch = f"{missing} of {passes} passes did not use {names}"
    return {
        SKIPPED: f"{seen.skips}, {names} in {when}",
        OUTSIDE: f"{seen.output} is not part of the loss, and nothing else uses {names}",
        NEVER: f"{names} did not run in {so_far}",
        BRANCH: f"{branch} (a branch that was not taken)",
        LOST: f"{names} ran, but the loss does not depend on the result (detach(), no_grad(), or dropped)",
        BESIDE: f"{names}: not used, although the module that holds it ran",
        UNKNOWN: f"the graph of the loss does not reach {names}",
    }[kind]
