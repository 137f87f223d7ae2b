"""What torch keeps of modules, parameters and DDP's reducer under names that are not public."""

from __future__ import annotations

from typing import Any, Dict

import torch

# Whether a parameter can be marked as ready while a backward runs (torch 2.1).
AT_ANY_TIME = hasattr(getattr(torch.distributed, "Reducer", None), "_autograd_hook")


def version(tensor: Any) -> int:
    """Return how often a tensor was written to in place."""
    return int(tensor._version)


def parameters_in(module: Any) -> Dict[str, Any]:
    """Return a module's own dictionary of its parameters, the frozen and the missing ones too."""
    found: Dict[str, Any] = module._parameters
    return found


def buffers_in(module: Any) -> Dict[str, Any]:
    """Return a module's own dictionary of its buffers."""
    found: Dict[str, Any] = module._buffers
    return found


def has_forward_hooks(module: Any) -> bool:
    """Return whether something is called before or after a module's forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
