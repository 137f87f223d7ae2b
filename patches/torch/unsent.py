"""A gradient bucket of which no rank used any parameter is not communicated.

All ranks skip the same layers, so all know it without asking. It goes through DDP's communication hook, on top of the
user's own one.
"""

from __future__ import annotations

import inspect
import math
import sys
import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import distributed

from ddpfix import draws, log, sync
from ddpfix.communication import COUNTED, Traffic
from ddpfix.frames import skip_frames
from ddpfix.registry import Site

from . import aligned, rehearsal, silent, window
from .window import droppable

# Hooks of torch that do the same with a bucket whatever they did with it before: to leave one out changes nothing for
# the rest.
_STATELESS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
# The share of all gradients from which on it pays, by the kind of device. On a CPU, torch divides and copies more where
# a hook is registered, which costs 4 to 7 % of a step whose communication is as fast as a loopback.
WORTH, _ELSEWHERE = {"cpu": 0.08}, 0.01
Hook = Callable[[Any, distributed.GradBucket], Any]


@dataclass
class Unsent:
    """The state of our communication hook for one wrapped model."""

    wrapper: Any
    window: window.Window
    inner: Optional[Tuple[Any, Hook]] = None
    # While a reduction of nothing is made for the order of the buckets.
    rehearsing: bool = False
    traffic: Traffic = field(default_factory=Traffic)

    def idle(self, bucket: distributed.GradBucket) -> bool:
        """Whether no rank used any parameter of this bucket."""
        unused = self.window.unused
        if not unused:
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


# Of the models in which our hook is at work.
STATES: weakref.WeakKeyDictionary[Any, Unsent] = weakref.WeakKeyDictionary()


def buckets(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on DDP: the hook is registered when it first runs, or around the one that the user registers."""
    site.often(owner, "forward", _forward)
    skip_frames(vars(owner)["forward"])
    site.once(owner, "register_comm_hook", _registered)
    site.at_undo(_end)


def _end() -> None:
    for state in list(STATES.values()):
        # A hook cannot be taken back: from here on it sends everything.
        state.window.unused = frozenset()
    STATES.clear()
    _CONSIDERED.clear()


_CONSIDERED: weakref.WeakSet[Any] = weakref.WeakSet()


def _forward(stock: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self.training or not torch.is_grad_enabled():
            return stock(self, *inputs, **kwargs)
        if self not in _CONSIDERED:
            _CONSIDERED.add(self)
            _begin(self)
        output = stock(self, *inputs, **kwargs)
        state = STATES.get(self)
        if state is not None:
            state.window.forward_ended()
        return output

    return forward


def _begin(wrapper: Any) -> None:
    """Before the first step."""
    try:
        _consider(wrapper)
    except Exception as error:
        log.warning(f"gradients of skipped layers are communicated: a {type(wrapper.module).__name__} gave {error!r}")
        return
    # What ends in an error halfway through a reduction of torch's must not be passed over.
    _rehearse(wrapper)


def _consider(wrapper: Any) -> None:
    """Register the hook in a model that skips layers on all ranks alike, where that pays."""
    if wrapper in STATES or not _shares_skips(wrapper):
        return
    share, least = expected(wrapper), WORTH.get(next(wrapper.module.parameters()).device.type, _ELSEWHERE)
    if share < least:
        log.debug(
            f"gradients of skipped layers are communicated: {share:.0%} of all, and a hook costs about {least:.0%}"
        )
        return
    if getattr(wrapper, "_comm_hooks", None):
        log.info("a communication hook was registered before ddpfix: gradients of skipped layers are communicated")
        return
    try:
        _install(wrapper, None)
    except RuntimeError as error:
        # torch has one hook a model, and its built-in ones are not listed everywhere.
        log.info(f"gradients of skipped layers are communicated: {str(error).splitlines()[0]}")


def expected(wrapper: Any) -> float:
    """The share of all gradients that is not sent in a step, in the mean, with buckets that end where layers end."""
    parameters = list(wrapper.module.parameters())
    sizes = {id(p): p.numel() * p.element_size() for p in parameters if p.requires_grad}
    rates = {name: rate for name, _, rate in draws.active(wrapper.module)}
    saved = 0.0
    for (name, _), own in droppable(wrapper.module, None, id).items():
        size = sum(sizes.get(number, 0) for number in own)
        # As many layers as share a bucket have to be skipped together.
        together = max(1, math.ceil(aligned.SHARE * wrapper.bucket_bytes_cap / max(1, size)))
        saved += size * float(rates.get(name, max(rates.values())) ** together)
    return saved / max(1.0, float(sum(sizes.values())))


def _rehearse(wrapper: Any) -> None:
    """Without the flag DDP makes its buckets anew; where it was told their sizes, give it their order."""
    state = STATES.get(wrapper)
    if state is None or wrapper not in aligned.SIZED or not silent.AT_ANY_TIME:
        return
    # A rank that has joined already makes them anew in its own time.
    if wrapper._join_config.enable:
        return
    state.rehearsing = True
    try:
        rehearsal.give_order(wrapper, state.window.parameters)
    finally:
        state.rehearsing = False


def _shares_skips(wrapper: Any) -> bool:
    if sync.replica_of(wrapper) is None or distributed.get_world_size(wrapper.process_group) < 2:
        return False
    if getattr(wrapper, "static_graph", False) or getattr(wrapper, "mixed_precision", None) is not None:
        return False
    return any(_shared(module) for _, module, _ in draws.active(wrapper.module))


def _shared(module: Any) -> bool:
    """Whether the decisions of this module are those of all ranks."""
    return any(level in draws.COVERED and not draws.COVERED[level].never for level in type(module).__mro__)


def _install(wrapper: Any, inner: Optional[Tuple[Any, Hook]]) -> None:
    state = Unsent(weakref.ref(wrapper), window.of(wrapper), inner)
    distributed._register_comm_hook(wrapper.reducer, state, skipping_buckets)
    STATES[wrapper] = state
    COUNTED[wrapper] = state.traffic


def _stateless(hook: Any) -> bool:
    # Whoever has one of them has imported its module; we would do so for nothing.
    known = sys.modules.get("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    return any(hook is getattr(known, name, None) for name in _STATELESS)


def _registered(wrapped: Any, wrapper: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    state = STATES.get(wrapper)
    if state is not None and state.inner is None:
        # Ours is there already, and torch takes no second one.
        state.inner = (given["state"], given["hook"])
        return None
    if state is not None or not _shares_skips(wrapper):
        return wrapped(*args, **kwargs)
    if not _stateless(given["hook"]):
        name = getattr(given["hook"], "__qualname__", repr(given["hook"]))
        log.info(f"gradients of skipped layers are communicated: {name} may keep something from bucket to bucket")
        _CONSIDERED.add(wrapper)
        return wrapped(*args, **kwargs)
    _install(wrapper, (given["state"], given["hook"]))
    return None
