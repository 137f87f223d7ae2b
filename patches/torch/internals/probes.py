"""Ask a release of torch that nobody has tested how its compiled reducer behaves, which no source here tells.

A reducer of its own, of two parameters on the CPU and a group of one rank, makes one or two backwards: some 20 ms, once
in a process that needs the answer. Nothing stays behind.
"""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
from torch import distributed

from . import reducer


def marks_what_is_missing() -> bool:
    """Return whether the reducer says what it waits for, and its reduction ends when that is marked as ready."""
    with torch.enable_grad():
        (first, second), made = _made(find_unused=False)
        made.prepare_for_backward([])
        (first * 2).sum().backward()
        if reducer.missing(made) != ([1], False):
            return False
        reducer.within_backward(lambda: reducer.mark_ready(made, [first, second], [1]))
        return not reducer.unfinished(made) and first.grad.item() == 1 and second.grad.item() == 0


def forgets_under_no_sync() -> bool:
    """Return whether a parameter that only an earlier micro-batch used is left out of the reduction (before 2.4)."""
    with torch.enable_grad():
        (first, second), made = _made(find_unused=True)
        # A micro-batch under no_sync, then the last one.
        (first * 2 + second * 4).sum().backward()
        loss = (first * 2).sum()
        made.prepare_for_backward([loss])
        loss.backward()
        return bool(second.grad.item() == 4)


def _halved(state: Any, bucket: Any) -> Any:
    """Return half of a bucket, by which a gradient that was reduced is known."""
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer() / 2)
    return done


def _made(find_unused: bool) -> Tuple[List[Any], Any]:
    """Return two parameters, and a reducer that has a bucket for each and expects a backward."""
    parameters = [torch.nn.Parameter(torch.ones(1, device="cpu", dtype=torch.float32)) for _ in range(2)]
    size = 1 << 20
    sparse = [False, False]
    made = distributed.Reducer(parameters, [[0], [1]], [size, size], _alone(), sparse, size, find_unused, False, {})
    # Nothing that a backward begins is left on its way to other ranks: gloo's thread would be waited for.
    distributed._register_comm_hook(made, None, _halved)
    made.prepare_for_forward()
    return parameters, made


def _alone() -> Any:
    """Return a gloo group of this rank alone, which opens no connection to another machine."""
    store, kind = distributed.HashStore(), distributed.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname="127.0.0.1")]
    try:
        group = distributed.ProcessGroup(store, 0, 1)
    except TypeError:
        # Before torch 2.6.
        group = distributed.ProcessGroup(store, 0, 1, distributed.ProcessGroup.Options("gloo"))
    backend = distributed.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), backend, kind(store, 0, 1, options))
    return group
