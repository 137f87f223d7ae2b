"""The figures of a run, each with its finding in words and a table of the numbers behind it."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ddpfix.cli.report.figures import absent, layers, memory, parameters, scales, seconds
from ddpfix.cli.report.figures.figure import Figure

why = absent.why
# In the order of the page.
_MAKERS = (layers.make, seconds.make, memory.make, parameters.make)


def make(runs: Sequence[Dict[str, Any]]) -> List[List[Figure]]:
    """Return all figures for which a run has data, for each run; the same figure of two runs has the same scale."""
    most = scales.of(runs)
    return [[figure for maker in _MAKERS for figure in maker(data, most)] for data in runs]
