"""The parameters behind the outputs of a forward, as DDP with ``find_unused_parameters=True`` looks for them."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Set

import torch


def leaves(output: Any) -> Optional[Set[int]]:
    """Return the ids of the tensors whose gradient the outputs can accumulate; None where no output has a graph."""
    roots = [tensor for tensor in tensors(output) if tensor.requires_grad]
    if not roots:
        return None
    found = {id(tensor) for tensor in roots if tensor.grad_fn is None}
    waiting = [tensor.grad_fn for tensor in roots if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def tensors(output: Any) -> Iterator[Any]:
    """Yield the tensors in an output: in lists, tuples, dicts and data classes, as DDP finds them."""
    if isinstance(output, torch.Tensor):
        yield output
        return
    inside: Any = ()
    if isinstance(output, (list, tuple)):
        inside = output
    elif hasattr(output, "values") and callable(output.values) and hasattr(output, "keys"):
        inside = list(output.values())
    elif hasattr(type(output), "__dataclass_fields__"):
        inside = [getattr(output, name, None) for name in type(output).__dataclass_fields__]
    for value in inside:
        yield from tensors(value)
