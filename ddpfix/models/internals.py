"""What torch keeps of modules, parameters and DDP's reducer under names that are not public."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

# Whether a parameter can be marked as ready while a backward runs (torch 2.1).
AT_ANY_TIME = hasattr(getattr(torch.distributed, "Reducer", None), "_autograd_hook")


def version(tensor: Any) -> int:
    """Return how often a tensor was written to in place."""
    return int(tensor._version)


def buffers_in(module: Any) -> Dict[str, Any]:
    """Return a module's own dictionary of its buffers."""
    found: Dict[str, Any] = module._buffers
    return found


def named_modules(root: Any) -> Iterator[Tuple[str, Any]]:
    """Yield a module and those below it by name, in torch's order, without a call of anything of the program's."""
    waiting, seen = [("", root)], set()
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        below = [(f"{name}.{each}" if name else each, part) for each, part in _own(module, "_modules")]
        waiting += [pair for pair in reversed(below) if pair[1] is not None]


def named_parameters(root: Any) -> Dict[str, Any]:
    """Return the parameters of a module and of those below it by name, each once, in the same way."""
    found: Dict[int, Tuple[str, Any]] = {}
    for name, module in named_modules(root):
        for each, parameter in _own(module, "_parameters"):
            if parameter is not None:
                found.setdefault(id(parameter), (f"{name}.{each}" if name else each, parameter))
    return dict(found.values())


def _own(module: Any, kind: str) -> List[Tuple[str, Any]]:
    return list(vars(module).get(kind, {}).items())


# Which backward runs on this thread, -1 for none: since torch 2.1.
TASK: Any = getattr(torch._C, "_current_graph_task_id", None)
# What repeats a forward in torch.utils.checkpoint, with and without reentrance.
_REPEATING = ("backward", "unpack", "unpack_hook")


def in_backward() -> bool:
    """Return whether autograd runs a backward on this thread; in an older torch, whether its checkpoints repeat one."""
    return bool(TASK() >= 0) if TASK is not None else _repeats(sys._getframe(1))


def _repeats(frame: Optional[FrameType]) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _REPEATING and frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False
