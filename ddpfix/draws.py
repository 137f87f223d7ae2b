"""Answers a toolkit's own random draws with shared ones, and leaves everything else to the toolkit's own code.

A forward that skips layers at random reads ``if torch.rand([]) < rate: skip``. For a training forward inside a wrapped
model we run a copy of that function in which the names ``torch``, ``random`` and ``numpy`` lead to look-alikes. They
take the stock number first, so every generator advances as in stock, and answer with a :class:`Draw` instead: the
schedule's number, which notes the comparison that the toolkit makes with it. What a skipped layer returns, which layer
may be skipped and what the rate is stays the toolkit's business. The stock function is never changed: it serves
evaluation, single processes and everything else.
"""

from __future__ import annotations

import functools
import weakref
from types import FunctionType
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpfix import calls, recall, rewrite, sync
from ddpfix.calls import Call, Draw, StepCall, first_layer, layer_count
from ddpfix.frames import skip_frames, skip_module
from ddpfix.registry import PatchError, Site
from ddpfix.rewrite import draws_layers, innermost, rate_path

__all__ = [
    "COVERED",
    "RECORDERS",
    "WATCHED",
    "Call",
    "Covered",
    "Draw",
    "active",
    "cover",
    "draws_layers",
    "first_layer",
    "innermost",
    "layer_count",
    "rate_of",
    "shared_call",
]


class Covered:
    """A function that draws, and its copy that answers to the schedule."""

    def __init__(self, site: Site, function: Any) -> None:
        inner = innermost(function)
        if not isinstance(inner, FunctionType):
            raise PatchError(f"{function!r} is not a Python function")
        path = rate_path(function)
        if path is None:
            raise PatchError(f"no LayerDrop rate was found in {inner.__qualname__}")
        self.path: Tuple[str, ...] = path
        self.never = False
        self.stock = function
        copy = rewrite.copy_with(inner, rewrite.rename(site, inner))
        skip_frames(copy)
        self.scheduled = rewrite.rebuild(function, inner, _recorded(copy))


def _recorded(copy: FunctionType) -> FunctionType:
    """The copied function with the recorders around it, inside of the decorators, where outputs are collected."""

    @functools.wraps(copy)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.CURRENT.get()
        begun = [(end, begin(self)) for begin, end in RECORDERS] if RECORDERS else ()
        result = copy(self, *args, **kwargs)
        for end, state in begun:
            if state is not None and call is not None:
                end(self, state, call)
        return result

    skip_frames(forward)
    return forward  # type: ignore[return-value]


# (begin(module) -> state or None, end(module, state, call)): put here by patches that complete a toolkit's records.
RECORDERS: List[Tuple[Callable[[Any], Any], Callable[[Any, Any, Call], None]]] = []
# (module, kwargs) -> whether a call outside of a wrapped model has to be watched, with its stock numbers.
WATCHED: List[Callable[[Any, Dict[str, Any]], bool]] = []


def cover(
    site: Site, owner: type, choose: Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any], never: bool = False
) -> Covered:
    """Put the schedule into ``owner.forward``.

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the forward.
        choose: ``choose(module, args, kwargs)`` gives the :class:`Call` for a training forward, or None for stock.
        never: whether no call of ``choose`` skips anything, so that the rate in force is 0.

    Raises:
        PatchError: the forward has another shape than expected; nothing was changed.
    """
    covered = Covered(site, vars(owner)["forward"])
    covered.never = never
    for ours in (recall, sync, calls):
        skip_module(ours)
    site.often(owner, "forward", functools.partial(_dispatch, covered, choose))
    COVERED[owner] = covered
    site.at_undo(functools.partial(_uncover, owner))
    return covered


def _dispatch(covered: Covered, choose: Callable[..., Optional[Call]], stock: Any) -> Callable[..., Any]:
    """The forward that decides between the stock function and its copy."""
    scheduled, rate = covered.scheduled, _reader(covered.path)

    def training(self: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        call = choose(self, args, kwargs)
        if call is None:
            return stock(self, *args, **kwargs)
        token = calls.CURRENT.set(call)
        try:
            return scheduled(self, *args, **kwargs)
        finally:
            calls.CURRENT.reset(token)
            call.close(self)

    skip_frames(training)

    # torch.compile follows this function in evaluation, and as far as the rate is zero in training.
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and rate(self):
            return training(self, args, kwargs)
        return stock(self, *args, **kwargs)

    return forward


COVERED: Dict[type, Covered] = {}


def _uncover(owner: type) -> None:
    COVERED.pop(owner, None)


def _reader(path: Tuple[str, ...]) -> Callable[[Any], Any]:
    if len(path) == 1:
        (name,) = path
        return lambda module: getattr(module, name)
    holder, name = path
    return lambda module: getattr(getattr(module, holder), name)


def rate_of(module: Any) -> float:
    """The LayerDrop rate that a module really uses; 0 for a module that does not draw, or that never skips."""
    for level in type(module).__mro__:
        if "forward" in vars(level):
            path = _path_of(level)
            value = 0.0 if path is None else _reader(path)(module)
            return float(value) if isinstance(value, (int, float)) else 0.0
    return 0.0


def _path_of(owner: type) -> Optional[Tuple[str, ...]]:
    """Where a class that draws reads its rate; also for one that is left as it is (DDPFIX_LAYERDROP=stock)."""
    covered = COVERED.get(owner)
    if covered is not None:
        return None if covered.never else covered.path
    if owner not in _PATHS:
        forward = vars(owner)["forward"]
        _PATHS[owner] = rate_path(forward) if draws_layers(forward) else None
    return _PATHS[owner]


_PATHS: weakref.WeakKeyDictionary[type, Optional[Tuple[str, ...]]] = weakref.WeakKeyDictionary()


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers at a rate above 0."""
    rated = ((name, module, rate_of(module)) for name, module in model.named_modules())
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def shared_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Call]:
    """The call of the current step, the one that a recomputation repeats, or outside of a wrapped model None."""
    past = recall.repeated(module, args, kwargs)
    if past is not None:
        return Call(past)
    step = sync.current()
    if step is None:
        return Call(None) if any(wanted(module, kwargs) for wanted in WATCHED) else None
    base, name, number = step.stream(module)
    recall.remember(module, args, kwargs, base, step)
    return StepCall(base, step, name, number)
