"""What has to be known of the first step without the flag, after which DDP makes its buckets anew.

DDP takes the order in which the first gradients come. What a rank skips in that step would come last, and share buckets
with whatever comes last, too; so the order is given before it, in a reduction of nothing that is not communicated.
"""

from __future__ import annotations

from typing import Any, Sequence

from . import reducer


def give_order(wrapper: Any, parameters: Sequence[Any]) -> None:
    """Have DDP make its buckets from the last parameter to the first, in its next forward.

    Whoever calls this returns all buckets at once in a communication hook meanwhile. Nothing happens where gradients
    are there already.

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
