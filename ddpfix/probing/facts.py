"""Collects what the rule about unused parameters (:mod:`ddpfix.rules.unused`) reads of a model's modules."""

from __future__ import annotations

import re
from typing import Any, Iterator, List, Mapping, Tuple

from ddpfix.rules.names import Group

# What attributes and configurations call the rate at which whole layers are skipped.
_RATE = re.compile(r"layer_?drop|stochastic_depth", re.IGNORECASE)


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
