"""What a cell is, in which groups and in which order cells run, and what a machine lacks for one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence, Tuple

# (backend, ranks)
GROUPS: Dict[str, Tuple[str, int]] = {"nccl1": ("nccl", 1), "nccl2": ("nccl", 2), "gloo2": ("gloo", 2)}
# Kinds of :mod:`.child`.
BOTH, LATE = "module over both cards", "rank 1 is late"


@dataclass(frozen=True)
class Cell:
    """One thing that ranks do and report on."""

    section: str
    group: str
    act: str  # the module of this folder whose ``run`` is called
    model: str = ""
    mode: str = ""
    kind: str = ""  # what the act tells apart beside model and mode
    options: Dict[str, Any] = field(default_factory=dict)
    limit: float = 40.0  # seconds after which it is ended
    least: float = 6.0  # seconds without which it is not begun

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.kind, self.model, self.mode) if part)


def numbers(version: Any) -> Tuple[int, ...]:
    # Where it is not installed, name what would be run with the newest.
    return tuple(int(part) for part in str(version or "9").split(".") if part.isdigit())


def lacking(cell: Cell, machine: Dict[str, Any]) -> str:
    """Why a cell cannot be run here, or ""."""
    cuda, nccl, release = machine["cuda"], GROUPS[cell.group][0] == "nccl", machine["funasr"]
    of_transformers = cell.model not in ("", "branches")
    # For the fix of FunASR's cache.
    by_itself = cell.kind == "cache" and (1, 0, 6) <= numbers(release) < (1, 0, 11)
    two = cell.group == "nccl2" or cell.options.get("cards", 1) > 1
    memory = cell.options.get("memory", 0)
    bf16 = "bf16" in cell.kind or cell.options.get("precision") == "bf16"
    reasons = {
        "transformers is not installed (pip install transformers)": of_transformers and not machine["transformers"],
        "FunASR is not installed (pip install funasr)": cell.section == "funasr" and not release,
        "this release of FunASR releases memory after every forward by itself": by_itself,
        "needs a CUDA device": nccl and not cuda,
        "autocast to float16 with loss scaling needs a CUDA device": "fp16" in cell.kind and not cuda,
        "this build of torch has no NCCL": nccl and not machine["nccl_there"],
        "needs two cards": cuda and two and machine["devices"] < 2,
        f"needs a card with {memory // 1000} GB": cuda and memory > machine["memory"],
        "this device has no bfloat16": cuda and bf16 and not machine["bf16"],
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


# In which order cells are run, and by which processes: what matters most comes first, in case time runs out.
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
