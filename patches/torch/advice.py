"""After some steps: what the flag cost so far, and whether it was of any use.

DDP keeps a record of its own (``_get_ddp_logging_data``), and knows whether the same parameters went unused in each
step. Both are read once; a few steps before, the walk through the graph is timed.
"""

from __future__ import annotations

import time
import weakref
from statistics import median
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

import torch

from ddpfix import log
from ddpfix.frames import skip_frames
from ddpfix.registry import Site

# Steps that are timed, at the end of those after which something is said.
_TIMED = 10


class Watched:
    """The first steps of one model under DDP.

    Args:
        wrapper: the DistributedDataParallel module.
        steps: after how many something is said.
    """

    def __init__(self, wrapper: Any, steps: int) -> None:
        self._module = weakref.ref(wrapper.module)
        self.left = steps
        self.steps = steps
        # Seconds from the end of the model's own forward to the end of DDP's, and from one step to the next.
        self.walks: List[float] = []
        # Whether some micro-batches are not reduced (``no_sync``), with which torch takes no graph for static.
        self.accumulates = False
        self.whole: List[float] = []
        self._ended = 0.0
        self._last = 0.0
        self._hook: Optional[Any] = None

    def begin(self) -> None:
        """A step that will be reduced begins."""
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

    def end(self) -> None:
        """DDP's forward has ended."""
        if self._ended:
            self.walks.append(time.perf_counter() - self._ended)
            self._ended = 0.0

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


_WATCHED: weakref.WeakKeyDictionary[Any, Watched] = weakref.WeakKeyDictionary()


def give(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on DDP."""
    steps = site.settings.number("advice")
    if steps is None:
        return

    def built(wrapped: Any, wrapper: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        if wrapper.find_unused_parameters and not getattr(wrapper, "static_graph", False):
            _WATCHED[wrapper] = Watched(wrapper, steps)

    site.once(owner, "__init__", built)
    site.often(owner, "forward", _forward)
    skip_frames(vars(owner)["forward"])
    site.at_undo(_end)


def _end() -> None:
    for watched in list(_WATCHED.values()):
        watched.close()
    _WATCHED.clear()


def _forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        watched = _WATCHED.get(self) if _WATCHED else None
        if watched is None or not torch.is_grad_enabled():
            return stock(self, *inputs, **kwargs)
        if not self.require_backward_grad_sync:
            watched.accumulates = True
            return stock(self, *inputs, **kwargs)
        if not watched.left:
            _WATCHED.pop(self).close()
            _say(self, watched)
            return stock(self, *inputs, **kwargs)
        watched.begin()
        output = stock(self, *inputs, **kwargs)
        watched.end()
        return output

    return forward


def _say(wrapper: Any, watched: Watched) -> None:
    try:
        record: Dict[str, Any] = wrapper._get_ddp_logging_data()
        static = bool(wrapper.reducer._ddp_graph_static())
    except Exception as error:
        log.debug(f"DDP has no record of its steps: {error!r}")
        return
    text = advice(static, int(record.get("unused_parameter_size", 0)), watched)
    if text:
        log.info(f"{type(wrapper.module).__name__}: {text}")


def advice(static: bool, unused: int, watched: Watched) -> str:
    """What is to be said of the first steps; "" if the flag does what it is there for.

    Args:
        static: whether the same parameters were unused in every step.
        unused: bytes of unused parameters, in a step.
        watched: what was timed.
    """
    if not static:
        return ""
    cost = _cost(watched)
    if not unused:
        return (
            f"find_unused_parameters=True has found no unused parameter in {watched.steps} steps on this rank. {cost}"
            " Without the flag (leave it out, or DDPFIX_UNUSED=late) nothing is looked for, and a step that leaves one"
            " out is closed after its backward"
        )
    return (
        f"the same parameters ({unused / 1e6:.3g} MB) were unused in each of {watched.steps} steps on this rank. {cost}"
        " If that holds on all ranks, freeze them before the model is wrapped (requires_grad_(False))"
        f"{'' if watched.accumulates else ', or set static_graph=True (DDPFIX_UNUSED=static)'};"
        " DDPFIX_UNUSED=late does without the walk as it is"
    )


def _cost(watched: Watched) -> str:
    if not watched.walks or not watched.whole:
        return "Looking for them walks through the graph in every step."
    walk, whole = median(watched.walks) * 1000, median(watched.whole) * 1000
    return f"Looking for them took {walk:.2g} ms of {whole:.3g} ms a step ({100 * walk / whole:.2g} %)."
