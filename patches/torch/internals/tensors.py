"""What tensors, their nodes and modules keep under names that are not public."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from types import MemberDescriptorType
from typing import Any, Callable, Iterator, List, Set, Tuple

import torch
from torch.nn.modules.batchnorm import _NormBase

from ddpfix.models.internals import buffers_in as buffers_in
from ddpfix.models.internals import version as version

from . import modes

_SET_VERSION: Any = torch._C._autograd._unsafe_set_version_counter
_function_mode = modes.any_function_mode


def written(parameter: Any) -> Tuple[Any, int]:
    """Return the gradient of a parameter of torch's own class, and how often it was written to in place: -1 if none."""
    if _function_mode():
        with modes.Uncounted():
            gradient = parameter.grad
            return gradient, -1 if gradient is None else gradient._version
    gradient = parameter.grad
    return gradient, -1 if gradient is None else gradient._version


def set_version(tensor: Any, number: int) -> None:
    """Set how often a tensor was written to, so that autograd does not see a write."""
    try:
        _SET_VERSION((tensor,), (number,))
    except TypeError:
        # Older releases take one tensor.
        _SET_VERSION(tensor, number)


class Prehook:
    """A hook that is put on many nodes: in a fifth of the time of ``Tensor.register_hook``."""

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self._holder = torch.zeros((), requires_grad=True)
        self._holder._backward_hooks = OrderedDict(((0, hook),))

    def put(self, node: Any) -> None:
        """Put it on the node behind a tensor that is its first output."""
        node._register_hook_dict(self._holder)


# So much of an output is looked at. A backward of what stands behind is noticed without.
_ITEMS = 128


def tensors_in(output: Any) -> List[Any]:
    """Return the tensors in a forward's output; of a large one those among its first parts.

    Plain DDP walks no output. So no code of the program's is run, nothing is consumed, and the cost has a bound.
    """
    found: List[Any] = []
    waiting, left = [output], _ITEMS
    seen: Set[int] = set()
    while waiting and left:
        each = waiting.pop()
        left -= 1
        if issubclass(type(each), torch.Tensor):
            found.append(each)
        elif id(each) not in seen:
            inside = list(islice(_inside(each), left))
            if inside:
                seen.add(id(each))
                waiting += reversed(inside)
    return found


def _inside(value: Any) -> Iterator[Any]:
    kind = type(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if issubclass(kind, dict):
        return iter(dict.values(value))
    return _fields(value, kind)


def _fields(value: Any, kind: type) -> Iterator[Any]:
    """Yield the fields of a dataclass's instance that are set."""
    bases = [vars(base) for base in type.mro(kind)]
    names = next((base["__dataclass_fields__"] for base in bases if "__dataclass_fields__" in base), ())
    for name in names:
        slot = next((base[name] for base in bases if name in base), None)
        try:
            if type(slot) is MemberDescriptorType:
                yield slot.__get__(value, kind)
            else:
                yield object.__getattribute__(value, "__dict__")[name]
        except (AttributeError, KeyError):
            continue


def is_norm(module: Any) -> bool:
    """Return whether a module is of torch's normalizations that keep running statistics."""
    return isinstance(module, _NormBase)


def has_step_hooks(optimizer: Any) -> bool:
    """Return whether an optimizer has hooks of the program's."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
