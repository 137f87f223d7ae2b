"""The order of buckets, set before the first step by a dummy reduction.

Without the flag DDP rebuilds its buckets after the first step, in the order in which the gradients of that step came.
A layer that is skipped in it would come last, and share buckets with other late parameters. So the order is set before
that step, in a dummy reduction that is not communicated.
"""

from __future__ import annotations

from typing import Any, Sequence

from ..internals import reducer


def give_order(wrapper: Any, parameters: Sequence[Any]) -> None:
    """Make DDP rebuild its buckets from the last parameter to the first, in its next forward.

    During the call, the caller's communication hook must return each bucket at once. Nothing happens if a parameter
    has a gradient already.

    Args:
        wrapper: the DistributedDataParallel module, before its first step.
        parameters: its parameters, in the order of the reducer's own numbers.
    """
    if any(parameter.grad is not None for parameter in parameters):
        return
    wrapper.reducer.prepare_for_backward([])
    reducer.within_backward(lambda: reducer.mark_ready(wrapper.reducer, parameters, range(len(parameters))))
    for parameter in parameters:
        parameter.grad = None
