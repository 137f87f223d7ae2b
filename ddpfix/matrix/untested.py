"""What is said of a toolkit's release that was not tested: one line, the same for every toolkit."""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Mapping, Optional, Sequence

from packaging.version import Version

from ddpfix.matrix.model import Matrix
from ddpfix.matrix.resolve import UNCHANGED, Decision, nearest_of
from ddpfix.state import State

# How many processes a launcher has started.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Words in the command of a process that torch itself has started, or of torchrun: no rank.
_NO_RANKS = ("torchrun", "torch.distributed.", "compile_worker")


def line(matrix: Matrix, toolkit: str, decisions: Sequence[Decision]) -> Optional[str]:
    """Return the line about a toolkit, or None where its release was tested, or lies within a tested range.

    Args:
        matrix: knows its distribution.
        toolkit: its name.
        decisions: about all patches.
    """
    own = [each for each in decisions if each.toolkit == toolkit and each.nearest]
    ready, left = sum(each.how == UNCHANGED for each in own), [each for each in own if each.action == State.SKIP]
    if not ready and not left:
        return None
    version = str(own[0].version)
    nearest = nearest_of((Version(each.nearest) for each in own), Version(version))
    parts = [f"{_fixes(ready)} applied where the code is unchanged there"] if ready else []
    parts += [f"{_fixes(len(left))} left out"] if left else []
    has = f"enables {'them' if len(left) != 1 else 'it'}"
    way = f"; pip install '{matrix.toolkits[toolkit]}=={nearest}' {has}" if left else ""
    return f"{toolkit} {version} was not tested (nearest: {nearest}): {' and '.join(parts)}{way}"


def _fixes(count: int) -> str:
    return f"{count} fixes are" if count != 1 else "1 fix is"


def difference(matrix: Matrix, decision: Decision, place: Optional[str], installed: Mapping[str, Optional[str]]) -> str:
    """Return why a fix is left out: a place has changed, or compiled code (None)."""
    toolkit = place.partition(":")[0].partition(".")[0] if place else decision.toolkit
    nearest = decision.nearest if toolkit == decision.toolkit and decision.nearest else matrix.newest[toolkit]
    # Not "torch has changed it": it may be another library.
    what = place or "the behaviour of the compiled code"
    return f"{what} differs from {toolkit} {nearest} ({installed[toolkit]} was not tested)"


def lines(matrix: Matrix, decisions: Sequence[Decision]) -> Dict[str, str]:
    """Return such lines, by toolkit."""
    toolkits: List[str] = list(dict.fromkeys(each.toolkit for each in decisions))
    found = {toolkit: line(matrix, toolkit, decisions) for toolkit in toolkits}
    return {toolkit: text for toolkit, text in found.items() if text is not None}


def is_told_of_torch() -> bool:
    """Return whether torch's release is said here: a launcher has started this process as one of several."""
    words = " ".join(getattr(sys, "orig_argv", sys.argv)[:4])
    sizes = [os.environ.get(name, "") for name in _SIZES]
    launched = any(size.isdecimal() and int(size) > 1 for size in sizes)
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    return launched and not any(word in words for word in _NO_RANKS) and (parent is None or parent() is None)
