"""Walks torch's autograd graph: the tensors of an output, what is behind their nodes, and the leaves they lead to."""

from __future__ import annotations

from itertools import islice
from types import MemberDescriptorType
from typing import Any, Iterable, Iterator, List, Set

import torch


def accumulators(parameters: Iterable[Any]) -> List[Any]:
    """Return the nodes of the graph at which gradients arrive, one a parameter; DDP keeps the same ones alive."""
    edge = getattr(torch.autograd.graph, "get_gradient_edge", None)
    if edge is not None:
        return [edge(parameter).node for parameter in parameters]
    with torch.enable_grad():
        return [parameter.expand_as(parameter).grad_fn.next_functions[0][0] for parameter in parameters]


def behind(nodes: Iterable[Any], given: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield some nodes and all that they lead to, each once, as far as the given ones."""
    waiting = list(dict.fromkeys(nodes))
    seen = {*waiting, *given}
    while waiting:
        node = waiting.pop()
        yield node
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        waiting += new


def leaves(tensors: Iterable[Any], given: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield the leaves to which the graph of some tensors leads, but for what is behind the given nodes."""
    for node in behind((each.grad_fn for each in tensors if each.grad_fn is not None), given):
        if hasattr(node, "variable"):
            yield node.variable


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
