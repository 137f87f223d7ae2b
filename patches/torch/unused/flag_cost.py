"""Advice after some steps: whether the flag was of any use.

DDP keeps a record of its own (``_get_ddp_logging_data``), and knows whether the same parameters went unused in each
step. Both are read once. Nothing is put on the model, which the program may save in any step.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Optional

from ddpfix import log
from ddpfix.patching.site import Site

from ..internals import wrapper as private
from ..pipeline import ddp


def give(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in, unless the user wants no advice."""
    steps = site.settings.number("advice")
    if steps is not None:
        ddp.put(site, owner, Advice(steps))


class Advice(ddp.Stage):
    """Counts the first steps of models that have the flag.

    Args:
        steps: the number of steps after which advice is given.
    """

    place = "advice"

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        wrapper = model.wrapper
        if wrapper.find_unused_parameters and not getattr(wrapper, "static_graph", False):
            model.attach(self.place, functools.partial(_begin, model, _Count(self._steps)))


class _Count:
    """The steps of one model.

    Attributes:
        left: how many will be reduced before the advice.
        accumulates: whether some micro-batches are not reduced (``no_sync``): torch then regards no graph as static.
    """

    def __init__(self, steps: int) -> None:
        self.steps = self.left = steps
        self.accumulates = False


def _begin(model: ddp.Wrapped, count: _Count) -> None:
    if not model.wrapper.require_backward_grad_sync:
        count.accumulates = True
    elif count.left:
        count.left -= 1
    else:
        model.detach(Advice.place)
        _advise(model.wrapper, count)


def _advise(wrapper: Any, count: _Count) -> None:
    try:
        record = private.record(wrapper)
    except Exception as error:
        log.debug(f"DDP has no record of its steps: {error!r}")
        return
    text = advice(record["static"], int(record.get("unused_parameter_size", 0)), count.steps, count.accumulates)
    if text:
        log.info(f"{type(wrapper.module).__name__}: {text}")


def advice(static: bool, unused: int, steps: int, accumulates: bool) -> str:
    """Return the advice after the first steps; "" if the flag is useful.

    Args:
        static: whether the same parameters were unused in every step.
        unused: bytes of unused parameters, in a step.
        steps: how many there were.
        accumulates: whether some micro-batches were not reduced.
    """
    if not static:
        return ""
    if not unused:
        return (
            f"find_unused_parameters=True has found no unused parameter in {steps} steps on this rank, and walks"
            " through the graph in every step. Without the flag (leave it out, or DDPFIX_UNUSED=late) nothing is looked"
            " for, and a step that leaves one out is finalized after its backward"
        )
    return (
        f"the same parameters ({unused / 1e6:.3g} MB) were unused in each of {steps} steps on this rank, and"
        " find_unused_parameters=True walks through the graph to find them in every step."
        " If that holds on all ranks, freeze them before the model is wrapped (requires_grad_(False))"
        f"{'' if accumulates else ', or set static_graph=True (DDPFIX_UNUSED=static)'};"
        " DDPFIX_UNUSED=late does without the walk as it is"
    )
