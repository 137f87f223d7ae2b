"""What tensors, their nodes and modules keep under names that are not public."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Tuple

import torch
from torch.nn.modules.batchnorm import _NormBase

from ddpfix.models.internals import buffers_in as buffers_in
from ddpfix.models.internals import version as version

from . import modes

_SET_VERSION: Any = torch._C._autograd._unsafe_set_version_counter
try:
    _SET_VERSION((), ())
    _TAKES_MANY = True
except TypeError:  # Older releases take one tensor. Given a tuple, their error prints it, and the host waits for that.
    _TAKES_MANY = False


def written(parameter: Any) -> Tuple[Any, int]:
    """Return the gradient of a parameter of torch's own class, and how often it was written to in place: -1 if none."""
    if modes.any_function_mode():
        with modes.Uncounted():
            gradient = parameter.grad
            return gradient, -1 if gradient is None else gradient._version
    gradient = parameter.grad
    return gradient, -1 if gradient is None else gradient._version


def set_version(tensor: Any, number: int) -> None:
    """Set how often a tensor was written to, so that autograd does not see a write."""
    _SET_VERSION(*((tensor,), (number,)) if _TAKES_MANY else (tensor, number))


class Prehook:
    """A hook that is put on many nodes: in a fifth of the time of ``Tensor.register_hook``."""

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self._holder = torch.zeros((), requires_grad=True)
        self._holder._backward_hooks = OrderedDict(((0, hook),))

    def put(self, node: Any) -> None:
        """Put it on the node behind a tensor that is its first output."""
        node._register_hook_dict(self._holder)


def is_norm(module: Any) -> bool:
    """Return whether a module is of torch's normalizations that keep running statistics."""
    return isinstance(module, _NormBase)


def has_step_hooks(optimizer: Any) -> bool:
    """Return whether an optimizer has hooks of the program's."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def hooks_sums(parameter: Any) -> bool:
    """Return whether the program changes gradients of this parameter after they were added up (torch 2.1 and later)."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))
