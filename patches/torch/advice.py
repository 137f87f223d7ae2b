"""Advice after some steps: what the flag has cost so far, and whether it was of any use.

DDP keeps a record of its own (``_get_ddp_logging_data``), and knows whether the same parameters went unused in each
step. Both are read once, after the walk through the graph was timed in the last steps before that.
"""

from __future__ import annotations

import functools
import time
import weakref
from statistics import median
from types import ModuleType
from typing import Any, Dict, List, Optional

from ddpfix import log
from ddpfix.patching.site import Site

from . import ddp

# How many steps are timed, the last ones before the advice.
_TIMED = 10


class Timed:
    """Times the first steps of one model under DDP.

    Args:
        wrapper: the DistributedDataParallel module.
        steps: the number of steps after which advice is given.
    """

    def __init__(self, wrapper: Any, steps: int) -> None:
        self._module = weakref.ref(wrapper.module)
        self.left = steps
        self.steps = steps
        # Seconds from the end of the model's own forward to the end of DDP's, and from one step to the next.
        self.walks: List[float] = []
        # Whether some micro-batches are not reduced (``no_sync``): torch then never regards a graph as static.
        self.accumulates = False
        self.whole: List[float] = []
        self._ended = 0.0
        self._last = 0.0
        self._hook: Optional[Any] = None

    def begin(self) -> None:
        """Called before a step that will be reduced."""
        self.left -= 1
        if self.left >= _TIMED:
            return
        now = time.perf_counter()
        if self._last:
            self.whole.append(now - self._last)
        self._last = now
        module = self._module()
        if self._hook is None and module is not None:
            self._hook = module.register_forward_hook(self._inner_ended)

    def _inner_ended(self, *_: Any) -> None:
        self._ended = time.perf_counter()

    def end(self, output: Any = None) -> None:
        """Called after DDP's forward."""
        if self._ended:
            self.walks.append(time.perf_counter() - self._ended)
            self._ended = 0.0

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def give(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in, unless the user wants no advice."""
    steps = site.settings.number("advice")
    if steps is not None:
        ddp.put(site, owner, Advice(steps))


class Advice(ddp.Stage):
    """Times the first steps of models that have the flag.

    Args:
        steps: the number of steps after which advice is given.
    """

    place = "advice"

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        wrapper = model.wrapper
        if wrapper.find_unused_parameters and not getattr(wrapper, "static_graph", False):
            timed = model.timed = Timed(wrapper, self._steps)
            model.attach(self.place, functools.partial(self._begin, model, timed), timed.end)

    def _begin(self, model: ddp.Wrapped, timed: Timed) -> None:
        if not model.wrapper.require_backward_grad_sync:
            timed.accumulates = True
        elif timed.left:
            timed.begin()
        else:
            timed.close()
            model.detach(self.place)
            _advise(model.wrapper, timed)

    def ended(self, model: ddp.Wrapped) -> None:
        if model.timed is not None:
            model.timed.close()


def _advise(wrapper: Any, timed: Timed) -> None:
    try:
        record: Dict[str, Any] = wrapper._get_ddp_logging_data()
        static = bool(wrapper.reducer._ddp_graph_static())
    except Exception as error:
        log.debug(f"DDP has no record of its steps: {error!r}")
        return
    text = advice(static, int(record.get("unused_parameter_size", 0)), timed)
    if text:
        log.info(f"{type(wrapper.module).__name__}: {text}")


def advice(static: bool, unused: int, timed: Timed) -> str:
    """The advice after the first steps; "" if the flag is useful.

    Args:
        static: whether the same parameters were unused in every step.
        unused: bytes of unused parameters, in a step.
        timed: the times.
    """
    if not static:
        return ""
    cost = _cost(timed)
    if not unused:
        return (
            f"find_unused_parameters=True has found no unused parameter in {timed.steps} steps on this rank. {cost}"
            " Without the flag (leave it out, or DDPFIX_UNUSED=late) nothing is looked for, and a step that leaves one"
            " out is finalized after its backward"
        )
    return (
        f"the same parameters ({unused / 1e6:.3g} MB) were unused in each of {timed.steps} steps on this rank. {cost}"
        " If that holds on all ranks, freeze them before the model is wrapped (requires_grad_(False))"
        f"{'' if timed.accumulates else ', or set static_graph=True (DDPFIX_UNUSED=static)'};"
        " DDPFIX_UNUSED=late does without the walk as it is"
    )


def _cost(timed: Timed) -> str:
    if not timed.walks or not timed.whole:
        return "Looking for them walks through the graph in every step."
    walk, whole = median(timed.walks) * 1000, median(timed.whole) * 1000
    return f"Looking for them took {walk:.2g} ms of {whole:.3g} ms a step ({100 * walk / whole:.2g} %)."
