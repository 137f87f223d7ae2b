"""The figures of a run, each with its finding in words and a table of the numbers behind it."""

from __future__ import annotations

from typing import Any, Dict, List

from ddpfix.cli.report.figures import layers, memory, parameters, seconds
from ddpfix.cli.report.figures.figure import Figure

# In the order of the page.
_MAKERS = (layers.make, seconds.make, memory.make, parameters.make)


def make(data: Dict[str, Any]) -> List[Figure]:
    """All figures for which the run has data."""
    return [figure for maker in _MAKERS for figure in maker(data)]
