"""What is said of a toolkit's release that nobody has tested: one line, the same for every toolkit."""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Optional, Sequence

from packaging.version import Version

from ddpfix.matrix.model import Matrix
from ddpfix.matrix.resolve import Decision, distance
from ddpfix.state import State

# How many processes a launcher has started.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Words in the command of a process that torch itself has started, or of torchrun: no rank.
_NO_RANKS = ("torchrun", "torch.distributed.", "compile_worker")


def line(matrix: Matrix, toolkit: str, decisions: Sequence[Decision]) -> Optional[str]:
    """Return the line about a toolkit, or None where its release is in the matrix.

    Args:
        matrix: knows its distribution.
        toolkit: its name.
        decisions: about all patches.
    """
    outside = [each for each in decisions if each.toolkit == toolkit and each.nearest and not each.forced]
    if not outside:
        return None
    version = str(outside[0].version)
    nearest = min((each.nearest for each in outside), key=lambda one: distance(Version(one), Version(version)))
    head = f"{toolkit} {version} is none of the releases that ddpfix was tested with (nearest: {nearest})"
    left = sum(each.action == State.SKIP for each in outside)
    if any(each.by_look for each in outside):
        return f"{head}: DDPFIX_UNTESTED=apply applies the fixes whose places look as in a tested release, no others"
    if Version(version) < Version(nearest):
        way = f"pip install '{matrix.toolkits[toolkit]}=={nearest}' has them"
    else:
        way = "DDPFIX_UNTESTED=apply applies those whose places in it look as in a tested release"
    return f"{head}: {left} {'fixes are' if left != 1 else 'fix is'} left out, and it runs as without ddpfix; {way}"


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
