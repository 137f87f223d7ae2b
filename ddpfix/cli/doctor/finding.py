"""What the doctor finds: one problem in words, whether it stops a training, and what to do."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

BLOCKS, WARNING = "blocks", "warning"


class Problem(NamedTuple):
    """One problem; its level is :data:`BLOCKS` if no training can run like this, else :data:`WARNING`."""

    level: str
    about: str
    text: str
    cure: str


#: The facts of one section, and what is wrong with them.
Section = Tuple[Dict[str, Any], List[Problem]]


def in_order(findings: List[Problem]) -> List[Problem]:
    """Return findings in order: those that stop a training come first."""
    return sorted(findings, key=lambda finding: finding.level != BLOCKS)
