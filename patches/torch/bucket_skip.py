"""A gradient bucket of which no rank used any parameter is not communicated.

All ranks skip the same layers, so all know it without asking. It goes through DDP's communication hook, on top of the
user's own one.
"""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.patching import temporary
from ddpfix.patching.site import Site
from ddpfix.ranks.traffic import COUNTED, Traffic

from . import bucket_cost, bucket_order, ddp, reducer
from .accumulation import Window, window_of

# Hooks of torch that do the same with a bucket whatever they did with it before: to leave one out changes nothing for
# the rest.
_STATELESS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
Hook = Callable[[Any, distributed.GradBucket], Any]


@dataclass
class Unsent:
    """The state of our communication hook for one wrapped model."""

    wrapper: Any
    window: Window
    inner: Optional[Tuple[Any, Hook]] = None
    # While a reduction of nothing is made for the order of the buckets.
    rehearsing: bool = False
    # After undo.
    ended: bool = False
    traffic: Traffic = field(default_factory=Traffic)

    def idle(self, bucket: distributed.GradBucket) -> bool:
        """Whether no rank used any parameter of this bucket."""
        unused = self.window.unused
        if not unused or self.ended:
            return False
        wrapper = self.wrapper()
        # A rank that has joined stands in for forwards that it did not run.
        if wrapper is None or wrapper._join_config.enable:
            return False
        # With a gradient of its own, the layer did run, or the optimizer's zero_grad keeps zeros.
        return all(p.grad is None and self.window.number(p) in unused for p in bucket.parameters())


def skipping_buckets(state: Unsent, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: the user's, or torch's own all-reduce, for every bucket that somebody used."""
    buffer = bucket.buffer()
    if state.rehearsing:
        return _done(buffer)
    size = buffer.numel() * buffer.element_size()
    traffic = state.traffic
    if state.idle(bucket):
        traffic.kept += 1
        traffic.saved += size
        return _done(buffer)
    traffic.buckets += 1
    traffic.sent += size
    if state.inner is not None:
        theirs, hook = state.inner
        found: torch.futures.Future[torch.Tensor] = hook(theirs, bucket)
        return found
    return _reduced(state, buffer)


def _done(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    devices = [buffer.device] if buffer.device.type != "cpu" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer)
    return future


def _reduced(state: Unsent, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    group = state.wrapper().process_group
    # As DDP itself rounds: a product with the reciprocal, before the sum.
    buffer.mul_(1.0 / group.size())
    work = distributed.all_reduce(buffer, group=group, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def buckets(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in."""
    ddp.put(site, owner, BucketSkip())


class BucketSkip(ddp.Stage):
    """Registers the hook before the first step, or around the one that the user registers."""

    place = "bucket_skip"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        if window_of(model) is not None:
            # Measured by all ranks together, if nobody has: now, and not when a rank first trains.
            model.plan = (call.facts.get("plan") if call is not None else None) or _plan(model, call)
            model.attach(self.place, functools.partial(self._first_forward, model))

    def _first_forward(self, model: ddp.Wrapped) -> None:
        if model.wrapper.training:
            model.detach(self.place)
            _begin(model)

    def hook(self, model: ddp.Wrapped, register: Callable[..., Any], state: Any, hook: Any) -> bool:
        if model.unsent is not None and model.unsent.inner is None:
            # Ours is there already, and torch takes no second one.
            model.unsent.inner = (state, hook)
            return True
        if model.unsent is not None or not _shares_skips(model):
            return False
        if not _stateless(hook):
            name = getattr(hook, "__qualname__", repr(hook))
            log.info(f"gradients of skipped layers are communicated: {name} may keep something from bucket to bucket")
            model.detach(self.place)
            return False
        _install(model, (state, hook))
        return True

    def ended(self, model: ddp.Wrapped) -> None:
        if model.unsent is not None:
            # A hook cannot be taken back: from here on it sends everything.
            model.unsent.ended = True
            model.unsent = None


def _begin(model: ddp.Wrapped) -> None:
    """Before the first step."""
    try:
        _consider(model)
    except Exception as error:
        name = type(model.wrapper.module).__name__
        log.warning(f"gradients of skipped layers are communicated: a {name} gave {error!r}")
        return
    # What ends in an error halfway through a reduction of torch's must not be passed over.
    _rehearse(model)


def _consider(model: ddp.Wrapped) -> None:
    """Register the hook in a model that skips layers on all ranks alike, where that pays."""
    if model.unsent is not None or not _shares_skips(model):
        return
    wrapper = model.wrapper
    if model.plan is None or not model.plan.together:
        return
    if getattr(wrapper, "_comm_hooks", None):
        log.info("a communication hook was registered before ddpfix: gradients of skipped layers are communicated")
        return
    try:
        _install(model, None)
    except RuntimeError as error:
        # torch has one hook a model, and its built-in ones are not listed everywhere.
        log.info(f"gradients of skipped layers are communicated: {str(error).splitlines()[0]}")


def _plan(model: ddp.Wrapped, call: Optional[ddp.Call]) -> bucket_cost.Plan:
    # Some ranks alone may train a copy, and nothing is measured with it.
    if call is None or not _shares_skips(model):
        return bucket_cost.NOTHING
    return bucket_cost.for_model(model.wrapper.module, model.wrapper.bucket_bytes_cap, model.wrapper.process_group)


def _rehearse(model: ddp.Wrapped) -> None:
    """Without the flag DDP makes its buckets anew; where it was told their sizes, give it their order."""
    state = model.unsent
    if state is None or not model.sized or not reducer.AT_ANY_TIME:
        return
    # A rank that has joined already makes them anew in its own time.
    if model.wrapper._join_config.enable:
        return
    with temporary.replaced(state, "rehearsing", True):
        bucket_order.give_order(model.wrapper, model.parameters)


def _shares_skips(model: ddp.Wrapped) -> bool:
    wrapper = model.wrapper
    if model.skips is None or distributed.get_world_size(wrapper.process_group) < 2:
        return False
    if getattr(wrapper, "static_graph", False) or getattr(wrapper, "mixed_precision", None) is not None:
        return False
    return any(_shared(module) for _, module, _ in cover.active(wrapper.module))


def _shared(module: Any) -> bool:
    """Whether the decisions of this module are those of all ranks."""
    return any(level in cover.COVERED and not cover.COVERED[level].never for level in type(module).__mro__)


def _install(model: ddp.Wrapped, inner: Optional[Tuple[Any, Hook]]) -> None:
    assert model.skips is not None
    wrapper = model.wrapper
    state = Unsent(weakref.ref(wrapper), model.skips, inner)
    distributed._register_comm_hook(wrapper.reducer, state, skipping_buckets)
    model.unsent = state
    COUNTED[wrapper] = state.traffic


def _stateless(hook: Any) -> bool:
    # Whoever has one of them has imported its module; we would do so for nothing.
    known = sys.modules.get("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    return any(hook is getattr(known, name, None) for name in _STATELESS)
