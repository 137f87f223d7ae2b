"""What is about to use gradients, or has to come after their reduction: reductions are closed before it."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from torch import distributed

from ddpfix import recall
from ddpfix.registry import Site

from .closing import CLOSED, OPEN, STEPPING

# Methods of a process group, all of which every collective of torch.distributed goes through. DDP's own are in C++.
_COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "allgather",
    "_allgather_base",
    "reduce",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "alltoall",
    "alltoall_base",
    "barrier",
)


def steps(site: Site, module: Any) -> None:
    """Every optimizer's step."""
    begun = module.register_optimizer_step_pre_hook(_step_begins)
    ended = module.register_optimizer_step_post_hook(_step_has_ended)
    for handle in (begun, ended):
        site.at_undo(handle.remove)
    site.at_undo(STEPPING.clear)


def _step_begins(optimizer: Any, *_: Any) -> None:
    if OPEN:
        _close_open()
    while CLOSED:
        CLOSED.pop().closed.clear()
    STEPPING.add(id(optimizer))


def _step_has_ended(optimizer: Any, *_: Any) -> None:
    STEPPING.discard(id(optimizer))


def functions(site: Site, owner: Any, names: Sequence[str]) -> None:
    """Clipping, and the gradient scaler."""
    for name in names:
        site.often(owner, name, _using)


def _using(stock: Callable[..., Any]) -> Callable[..., Any]:
    def using(*args: Any, **kwargs: Any) -> Any:
        if OPEN:
            _close_open()
        return stock(*args, **kwargs)

    return using


def _close_open() -> None:
    for closer in list(OPEN):
        OPEN.discard(closer)
        closer.close_now()


def collectives(site: Site) -> None:
    """A loop may reduce its loss between backward and step; a rank that used every parameter waits in backward."""
    group = distributed.ProcessGroup
    for name in _COLLECTIVES:
        if hasattr(group, name):
            site.replace(group, name, _after_reduction(getattr(group, name)))


def _after_reduction(stock: Callable[..., Any]) -> Callable[..., Any]:
    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        if OPEN and not recall.in_backward():
            for closer in [closer for closer in OPEN if closer.complete()]:
                OPEN.discard(closer)
                closer.close_now()
        return stock(self, *args, **kwargs)

    return collective
