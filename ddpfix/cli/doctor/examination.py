"""The whole of what the doctor knows of one process, as plain data."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from ddpfix.cli.doctor import activation, choices, limits, network, private, versions
from ddpfix.cli.doctor.finding import BLOCKS, WARNING, Problem, Section, in_order
from ddpfix.matrix import loader

#: The form of the data; a key that goes or changes its meaning makes it a new one.
FORMAT = 4


def make() -> Dict[str, Any]:
    """Examine everything: a part that fails is a finding, and the others are there. MatrixError: there is no matrix."""
    whole = loader.load()
    values, errors = choices.read(whole)
    torch, problem = versions.torch_here()
    found: Dict[str, Any] = {}
    findings: List[Problem] = []

    def part(name: str, look: Callable[[], Section]) -> None:
        found[name], wrong = _safe(name, look)
        findings.extend(wrong)

    part("versions", lambda: versions.look(whole, torch, problem))
    part("activation", activation.look)
    part("settings", lambda: choices.look_at_settings(whole, values, errors))
    toolkits = found["versions"].get("toolkits", {})
    part("patches", lambda: choices.look_at_patches(whole, toolkits, values))
    part("network", lambda: network.look(versions.backend(torch)))
    part("limits", lambda: limits.look(torch))
    ordered = in_order(findings)
    head = {
        "format": FORMAT,
        "blocked": any(each.level == BLOCKS for each in ordered),
        "findings": [each._asdict() for each in ordered],
    }
    return {**head, **found}


def _safe(name: str, look: Callable[[], Section]) -> Tuple[Dict[str, Any], List[Problem]]:
    try:
        return look()
    except Exception as error:
        text = f"this part could not be examined: {private.error(error)}"
        return {"error": private.error(error)}, [
            Problem(WARNING, name, text, "please report this; the other parts are complete")
        ]
