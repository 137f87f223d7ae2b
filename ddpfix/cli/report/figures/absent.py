"""Why a run has no figure about a subject, in a few words."""

from __future__ import annotations

from typing import Any, Dict

Data = Dict[str, Any]


def why(subject: str, data: Data) -> str:
    """Return the reason; asked only where there is no figure."""
    steps, unused, layers = data["steps"], data["unused"], data["layers"]
    if not steps:
        return "the run has no step"
    known = {
        "layers": layers is not None,
        "time": data["time"]["mean"]["total"] is not None,
        "memory": bool(data["memory"]["records"]),
        "unused": unused["known"],
        "loss": any(value is not None for value in data["series"]["loss"]["mean"]),
    }
    if not known[subject]:
        return "the trace does not have it"
    if subject == "layers":
        return "no layer was skipped"
    if subject == "unused" and not unused["groups"]:
        return "every parameter had a gradient in each step"
    return "a single step" if steps == 1 else "too few steps"
