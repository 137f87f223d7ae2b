"""In which order cells are run, and by which processes: what matters most comes first, in case time runs out."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from tests.gpu.cells import Cell

_EXACT = ("exactness", "precision")
# (seconds at most, group, sections): about twice what they need, so that ranks which die again and again leave time for
# the rest. The table has processes of its own, and so have graphs: a capture that fails may end them.
_ON_CARDS: Tuple[Tuple[float, str, Sequence[str]], ...] = (
    (130.0, "gloo2", ("syncs", "loops")),
    (130.0, "nccl1", ("syncs", "loops", "exactness")),
    (150.0, "nccl1", ("table",)),
    (150.0, "gloo2", ("hangs", "exactness", "trace", "streams", "memory")),
    (100.0, "nccl2", ("syncs", "loops", "starts", "hangs")),
    (80.0, "nccl2", _EXACT),
    (150.0, "nccl2", ("table",)),
    (150.0, "nccl1", ("trace", "streams", "starts")),
    (100.0, "nccl1", ("graphs",)),
    (80.0, "gloo2", ("precision",)),
    (100.0, "nccl1", ("precision", "funasr")),
    (100.0, "nccl2", ("graphs",)),
    (100.0, "nccl2", ("trace", "streams")),
)
_ON_CPU: Tuple[Tuple[float, str, Sequence[str]], ...] = (
    (400.0, "gloo2", ("syncs", "loops", "table", "hangs", "trace", "streams", "memory", "graphs")),
    (400.0, "gloo2", _EXACT),
    (200.0, "gloo2", ("starts",)),
)


def launches(cells: Sequence[Cell], cuda: bool) -> List[Tuple[float, List[Cell]]]:
    """(seconds at most, cells of one group): what is run by the same processes, in the order of importance."""
    found = []
    for most, group, sections in _ON_CARDS if cuda else _ON_CPU:
        picked = [cell for section in sections for cell in cells if (cell.group, cell.section) == (group, section)]
        if picked:
            found.append((most, picked))
    return found
