"""The figures of a run, each with its finding in words and a table of the numbers behind it."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ddpfix.cli.report.figures import layers, memory, parameters, scales, seconds
from ddpfix.cli.report.figures.figure import Figure

# In the order of the page.
_MAKERS = (layers.make, seconds.make, memory.make, parameters.make)


def make(runs: Sequence[Dict[str, Any]]) -> List[List[Figure]]:
    """Return all figures for which a run has data, for each run; the same figure of two runs has the same scale."""
    most = scales.of(runs)
    return [[figure for maker in _MAKERS for figure in maker(data, most)] for data in runs]


def why(subject: str, data: Dict[str, Any]) -> str:
    """Return the reason; asked only where there is no figure."""
    steps, unused, layers = data["steps"], data["unused"], data["layers"]
    if not steps:
        return "no steps"
    known = {
        "layers": layers is not None,
        "time": data["time"]["mean"]["total"] is not None,
        "memory": bool(data["memory"]["records"]),
        "unused": unused["known"],
        "loss": any(value is not None for value in data["series"]["loss"]["mean"]),
    }
    if not known[subject]:
        return "not recorded"
    if subject == "layers":
        return "no layer was skipped"
    if subject == "unused" and not unused["groups"]:
        return "every parameter had a gradient in every step"
    return "only one step" if steps == 1 else "too few steps"
