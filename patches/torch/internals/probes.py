"""Ask a release of torch that nobody has tested how its compiled reducer behaves, which no source here tells.

A reducer of its own has two parameters on the CPU, and hands its buckets to a hook, so that nothing is communicated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from . import modes, reducer


def marks_what_is_missing() -> bool:
    """Return whether the reducer says what it waits for, and its reduction ends when that is marked as ready."""
    # A mode of the program counts nothing of it.
    with modes.hidden(), torch.enable_grad():
        parameters = [torch.nn.Parameter(torch.ones(1, device="cpu", dtype=torch.float32)) for _ in range(2)]
        made = _made(parameters)
        made.prepare_for_forward()
        made.prepare_for_backward([])
        (parameters[0] * 2).sum().backward()
        if reducer.missing(made) != ([1], False):
            return False
        reducer.within_backward(lambda: reducer.mark_ready(made, parameters, [1]))
        return not reducer.unfinished(made) and [each.grad.item() for each in parameters] == [1, 0]


def _made(parameters: Any) -> Any:
    """Return a reducer with a bucket for each parameter, in a group of one rank that has no backend."""
    group, size = distributed.ProcessGroup(distributed.HashStore(), 0, 1), 1 << 20
    made = distributed.Reducer(parameters, [[0], [1]], [size, size], group, [False, False], size, False, False, {})
    distributed._register_comm_hook(made, None, _halved)
    return made


def _halved(state: Any, bucket: Any) -> Any:
    """Return half of a bucket, by which a gradient that was reduced is known."""
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer() / 2)
    return done
