"""All calls of the methods of DDP's reducer that are not public."""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any, Callable, List, Sequence, Tuple

import torch
from torch import distributed
from torch.autograd import Variable

from ddpfix.models.internals import AT_ANY_TIME as AT_ANY_TIME

# The parameters that a rank still waits for, in torch's error. It lists a hundred at most, followed by dots.
NO_GRADIENT = re.compile(r"did not receive grad for rank (?P<rank>\d+): (?P<indices>[\d ]+)(?P<more>\.\.\.)?")


def unfinished(reducer: Any) -> str:
    """Return the error that torch would raise at the next forward; "" if the reduction is finished or has not begun.

    Before torch 2.1 only the function that rebuilds the buckets checks this. After the first reduction it runs a
    collective, so it must not be called before that.
    """
    ask = getattr(reducer, "_check_reducer_finalized", None) or reducer._rebuild_buckets
    try:
        ask()
    except RuntimeError as error:
        return str(error)
    return ""


def missing(reducer: Any) -> Tuple[List[int], bool]:
    """Return the numbers of parameters that the reducer waits for, and whether there are more of them."""
    named = NO_GRADIENT.search(unfinished(reducer))
    if named is None:
        return [], False
    return [int(word) for word in named["indices"].split()], named["more"] is not None


def mark_ready(reducer: Any, parameters: Sequence[Any], indices: Sequence[int]) -> None:
    """Mark parameters as ready, without gradient; called within a backward, or a callback of one."""
    # Gradients come from the last layer to the first, and DDP rebuilds its buckets in the order of the first step.
    ordered = sorted(indices, reverse=True)
    hook = getattr(reducer, "_autograd_hook", None)
    if hook is None:
        _run_backward([parameters[index] for index in ordered])
        return
    for index in ordered:
        hook(index)


def arm_again(reducer: Any) -> None:
    """Reduce the gradients that come from here on, as after a forward; all ranks call it alike."""
    # Without the flag DDP rebuilds the buckets after the first reduction, in the order in which gradients came.
    reducer._rebuild_buckets()
    reducer.prepare_for_backward([])


def use_up_flag_warning(group: Any) -> None:
    """Use up torch's warning of a flag for which there was no unused parameter, unless the program wants all warnings.

    torch prints it past Python, once a process. A small reducer, which communicates nothing, is where that happens
    here: called by a function of torch's that hands warnings to Python, from a frame without a module, of which Python
    prints none. No filter and no registry of warnings is touched.
    """
    if torch.is_warn_always_enabled():
        return
    with torch.enable_grad():
        parameter = torch.zeros(1, requires_grad=True, device="cpu")
        output = parameter.clone()
        reducer = distributed.Reducer([parameter], [[0]], [_BYTES], group, find_unused_parameters=True)

    def search(number: float) -> float:
        reducer.prepare_for_backward([output])
        return number

    call = FunctionType(_apply.__code__, {"__name__": None})
    call(torch.zeros(1, device="cpu"), search)


def _apply(tensor: Any, function: Callable[[float], float]) -> None:
    tensor.apply_(function)


# Of a bucket.
_BYTES = 1 << 20
# at_end_of_backward(action): called within a backward; calls action() when that backward has ended.
at_end_of_backward: Callable[[Callable[[], Any]], None] = Variable._execution_engine.queue_callback


def within_backward(action: Callable[[], None]) -> None:
    """Call ``action()`` at the end of a dummy backward, in which DDP can queue its own callbacks."""
    with torch.enable_grad():
        start = torch.zeros((), requires_grad=True)
        end = start * 1
    end.register_hook(lambda gradient: at_end_of_backward(action))
    end.backward()


class _Undefined(torch.autograd.Function):  # type: ignore[misc]
    """Sends no gradient to its parameters; autograd runs their hooks all the same."""

    @staticmethod
    def forward(ctx: Any, start: Any, *parameters: Any) -> Any:
        ctx.count = len(parameters)
        return start.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (gradient, *([None] * ctx.count))


def _run_backward(parameters: List[Any]) -> None:
    """Run the reducer's hooks through autograd, which is the only way before torch 2.1."""
    # The user's hooks on parameters expect a gradient, so they are removed during this backward. They are not in the
    # tensor's own dictionary, so they are restored by hand.
    removed: List[Tuple[Any, Any]] = [(p, p._backward_hooks) for p in parameters if p._backward_hooks]
    for parameter, _ in removed:
        parameter._backward_hooks = None
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            _Undefined.apply(torch.zeros((), requires_grad=True), *parameters).backward()
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for parameter, hooks in removed:
            parameter._backward_hooks = hooks
