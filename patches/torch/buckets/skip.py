"""A gradient bucket of which no rank used any parameter is not communicated.

All ranks skip the same layers, so each rank knows it without communication. The decision is taken in DDP's
communication hook, which calls the user's own one for all other buckets.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

import torch
from torch import distributed

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.models.traffic import COUNTED, Traffic
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from ..internals import reducer
from ..internals import wrapper as private
from ..pipeline import ddp
from . import cost, order
from .window import WINDOW, Window, leave, window_of

# Hooks of torch that keep no state between buckets, so that a bucket can be left out without an effect on the others.
_STATELESS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
Hook = Callable[[Any, distributed.GradBucket], Any]


class Unsent:
    """The state of our communication hook for one wrapped model.

    Args:
        wrapper: a weak reference to the model under DDP.
        window: what the ranks skip in one window of gradient accumulation.
        inner: state and hook of the user's own, or of torch's.
    """

    def __init__(self, wrapper: Any, window: Window, inner: Optional[Tuple[Any, Hook]] = None) -> None:
        self.wrapper, self.window, self.inner = wrapper, window, inner
        # While a dummy reduction sets the order of the buckets.
        self.in_dummy_reduction = False
        # After undo.
        self.ended = False
        self.traffic = Traffic()

    def idle(self, bucket: distributed.GradBucket) -> bool:
        """Return whether no rank used any parameter of this bucket."""
        unused = self.window.unused
        if not unused or self.ended:
            return False
        wrapper = self.wrapper()
        # A rank that has joined shadows forwards that it did not run.
        if wrapper is None or private.joins(wrapper):
            return False
        # A parameter with a gradient was used, or the optimizer's zero_grad keeps zeros.
        return all(p.grad is None and self.window.number(p) in unused for p in bucket.parameters())


def skipping_buckets(state: Unsent, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return the communication hook: the user's, or torch's own all-reduce, for every bucket that some rank used."""
    buffer = bucket.buffer()
    if state.in_dummy_reduction:
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
        user_state, hook = state.inner
        future: torch.futures.Future[torch.Tensor] = hook(user_state, bucket)
        return future
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


# How the layers of a model share buckets, and the state of our communication hook where it is registered.
PLAN: ddp.Slot[cost.Plan] = ddp.Slot()
UNSENT: ddp.Slot[Unsent] = ddp.Slot()


def buckets(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in."""
    ddp.put(site, owner, BucketSkip())


class BucketSkip(ddp.Stage):
    """Registers the hook before the first step, or around the one that the user registers."""

    place = "bucket_skip"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        if window_of(model, self.place) is not None:
            # All ranks measure together, so this happens now and not when a rank first trains.
            PLAN.put(model, (call.facts.get("plan") if call is not None else None) or _plan(model))
            model.attach(self.place, functools.partial(self._first_forward, model))

    def _first_forward(self, model: ddp.Wrapped) -> None:
        if ddp.trains(model.wrapper):
            model.detach(self.place)
            _begin(model)

    def hook(self, model: ddp.Wrapped, register: Callable[..., Any], state: Any, hook: Any) -> bool:
        ours = UNSENT.of(model)
        if ours is not None and ours.inner is None:
            # Our hook is registered already, and torch takes no second one.
            ours.inner = (state, hook)
            return True
        if ours is not None or not _shares_skips(model):
            return False
        if not _stateless(hook):
            name = getattr(hook, "__qualname__", repr(hook))
            log.info(f"gradients of skipped layers are communicated: {name} may keep something from bucket to bucket")
            model.detach(self.place)
            return False
        _install(model, (state, hook))
        return True

    def ended(self, model: ddp.Wrapped) -> None:
        ours = UNSENT.clear(model)
        if ours is not None:
            # torch cannot remove a hook: from here on it sends every bucket.
            ours.ended = True
        leave(model, self.place)


def _begin(model: ddp.Wrapped) -> None:
    """Register the hook and set the order of the buckets, before the first step."""
    try:
        _consider(model)
    except Exception as error:
        name = type(model.wrapper.module).__name__
        log.warning(f"gradients of skipped layers are communicated: a {name} gave {error!r}")
        return
    # An error in the middle of a reduction must not be caught.
    _set_bucket_order(model)


def _consider(model: ddp.Wrapped) -> None:
    """Register the hook in a model that skips the same layers on all ranks, if it saves time."""
    if UNSENT.of(model) is not None or not _shares_skips(model):
        return
    wrapper, plan = model.wrapper, PLAN.of(model)
    if plan is None or not plan.together:
        return
    if private.has_hook(wrapper):
        log.info("a communication hook was registered before ddpfix: gradients of skipped layers are communicated")
        return
    try:
        _install(model, None)
    except RuntimeError as error:
        # torch has one hook a model, and its built-in ones are not listed everywhere.
        log.info(f"gradients of skipped layers are communicated: {str(error).splitlines()[0]}")


def _plan(model: ddp.Wrapped) -> cost.Plan:
    # A model without a name may be on some ranks only, so nothing is measured for it.
    if not model.number or not _shares_skips(model):
        return cost.NOTHING
    return cost.for_model(model.wrapper.module, model.wrapper.bucket_bytes_cap, model.wrapper.process_group)


def _set_bucket_order(model: ddp.Wrapped) -> None:
    """Give DDP the order of its buckets, if it has their sizes: without the flag it rebuilds them."""
    state = UNSENT.of(model)
    if state is None or not model.sized or not reducer.AT_ANY_TIME:
        return
    # A rank that has joined rebuilds its buckets by itself.
    if private.joins(model.wrapper):
        return
    with temporary.replaced(state, "in_dummy_reduction", True):
        order.give_order(model.wrapper, model.parameters)


def _shares_skips(model: ddp.Wrapped) -> bool:
    wrapper = model.wrapper
    if WINDOW.of(model) is None or distributed.get_world_size(wrapper.process_group) < 2:
        return False
    if getattr(wrapper, "static_graph", False) or getattr(wrapper, "mixed_precision", None) is not None:
        return False
    return any(cover.is_shared(module) for _, module, _ in cover.active(wrapper.module))


def _install(model: ddp.Wrapped, inner: Optional[Tuple[Any, Hook]]) -> None:
    wrapper, window = model.wrapper, WINDOW.of(model)
    assert window is not None
    state = Unsent(weakref.ref(wrapper), window, inner)
    private.register_hook(wrapper, state, skipping_buckets)
    UNSENT.put(model, state)
    COUNTED[wrapper] = state.traffic


def _stateless(hook: Any) -> bool:
    # If the user's hook is one of them, its module is imported already.
    known = sys.modules.get("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    return any(hook is getattr(known, name, None) for name in _STATELESS)
