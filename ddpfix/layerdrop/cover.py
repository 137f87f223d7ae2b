"""Replaces a toolkit's own random draws by shared ones, and leaves everything else to the toolkit's own code.

A forward that skips layers at random reads ``if torch.rand([]) < rate: skip``. For a training forward inside a wrapped
model we run a copy of that function in which the names ``torch``, ``random`` and ``numpy`` refer to look-alikes. They
first draw the original number, so every generator advances as it does without ddpfix, and return a :class:`Draw`
instead: the schedule's number, which records the comparison that the toolkit makes with it. The toolkit's code still
decides what a skipped layer returns, which layer may be skipped and what the rate is. The original function is never
changed: evaluation, single processes and everything else run it.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from types import FunctionType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ddpfix.layerdrop import code_copy, draw, recompute, schedule, training
from ddpfix.layerdrop.code_copy import draws_layers, innermost, rate_paths
from ddpfix.layerdrop.draw import Call, Draw, StepCall, first_layer, layer_count
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import PatchError, Registry, Site

__all__ = [
    "COVERED",
    "RECORDERS",
    "OBSERVED",
    "Call",
    "Covered",
    "Draw",
    "active",
    "cover",
    "drawing_method",
    "draws_layers",
    "first_layer",
    "innermost",
    "layer_count",
    "rate_of",
    "rate_paths",
    "shared_call",
    "shared_vector",
]


_NO_TRAITS = code_copy.Traits()


class Covered:
    """A function that draws, and its copy that follows the schedule."""

    def __init__(self, site: Site, function: Any, traits: code_copy.Traits = _NO_TRAITS) -> None:
        inner = innermost(function)
        if not isinstance(inner, FunctionType):
            raise PatchError(f"{function!r} is not a Python function")
        self.paths = rate_paths(function)
        if not self.paths:
            raise PatchError(f"no LayerDrop rate was found in {inner.__qualname__}")
        self.path = self.paths[0]
        self.rate = _reader(self.paths, code_copy.iterates(function))
        self.never = False
        self.choose: Callable[..., Optional[Call]] = lambda module, args, kwargs: None
        self.original = function
        self.generates = inspect.isgeneratorfunction(inner)
        copy = code_copy.copy_with(inner, code_copy.rename(site, inner, traits))
        skip_frames(copy)
        self.scheduled = code_copy.rebuild(function, inner, self._called(_recorded(copy)))

    def _called(self, copy: FunctionType) -> FunctionType:
        """The copy, which finds its call by itself when a decorator runs it again (activation checkpointing)."""

        @functools.wraps(copy)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if draw.CURRENT.get() is not None:
                return copy(module, *args, **kwargs)
            return self.answered(copy, self.choose(module, args, kwargs), module, args, kwargs)

        skip_frames(forward)
        return forward  # type: ignore[return-value]

    def answered(self, function: Any, call: Optional[Call], module: Any, args: Any, kwargs: Any) -> Any:
        """Run the function with the draws of this call; with its own if there is none."""
        if call is None:
            return function(module, *args, **kwargs)
        if self.generates:
            return self._one_by_one(function(module, *args, **kwargs), call, module)
        token = draw.CURRENT.set(call)
        try:
            return function(module, *args, **kwargs)
        finally:
            draw.CURRENT.reset(token)
            if call.skipped:
                call.ended(module, self.active(module))

    def _one_by_one(self, made: Iterator[Any], call: Call, module: Any) -> Iterator[Any]:
        """The values of a generator; between two of its steps, its call is not the current one."""
        try:
            while True:
                token = draw.CURRENT.set(call)
                try:
                    value = next(made)
                except StopIteration:
                    return
                finally:
                    draw.CURRENT.reset(token)
                yield value
        finally:
            if call.skipped:
                call.ended(module, self.active(module))

    def active(self, module: Any) -> List[str]:
        """The names of the rates above 0, in the order in which the function draws for them."""
        return [path[-1] for path in self.paths if _read(module, path)]


def _recorded(copy: FunctionType) -> FunctionType:
    """The copied function with the recorders around it, inside of the decorators, where outputs are collected."""

    @functools.wraps(copy)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = draw.CURRENT.get()
        begun = [(end, begin(self)) for begin, end in RECORDERS] if RECORDERS else ()
        result = copy(self, *args, **kwargs)
        for end, state in begun:
            if state is not None and call is not None:
                end(self, state, call)
        return result

    skip_frames(forward)
    return forward  # type: ignore[return-value]


# Where both are called.
_AT = "each forward that skips layers"
# (begin(module) -> state or None, end(module, state, call)): put here by patches that complete a toolkit's records.
RECORDERS: Registry[Tuple[Callable[[Any], Any], Callable[[Any, Any, Call], None]]] = Registry(_AT)
# (module, kwargs) -> whether a call outside of a wrapped model has to be observed, with its original numbers.
OBSERVED: Registry[Callable[[Any, Dict[str, Any]], bool]] = Registry(_AT)


# Where toolkits draw for their layers: in forward, or in a method that it calls; a list of layers that drops some does
# it where it is iterated over.
METHODS = ("forward", "extract_features", "_forward", "__iter__")


def drawing_method(owner: type) -> Optional[str]:
    """The method of a class itself, not of its bases, that draws for layers; None if there is none."""
    return next((name for name in METHODS if name in vars(owner) and draws_layers(vars(owner)[name])), None)


def _method(owner: type) -> str:
    method = drawing_method(owner)
    if method is None:
        raise PatchError(f"{owner.__module__}.{owner.__qualname__} does not draw for layers")
    return method


def cover(
    site: Site,
    owner: type,
    choose: Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any],
    never: bool = False,
    rate: Optional[Callable[[Any], float]] = None,
    traits: code_copy.Traits = _NO_TRAITS,
) -> Covered:
    """Put the schedule into the method of ``owner`` that draws (see :func:`drawing_method`).

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the method.
        choose: ``choose(module, args, kwargs)`` gives the :class:`Call` for a training forward; None: no change.
        never: whether no call of ``choose`` skips anything, so that the rate in force is 0.
        rate: ``rate(module)`` gives the rate in force, where it is not the largest that the forward reads.
        traits: what is particular to the toolkit's code.

    Raises:
        PatchError: the method has another shape than expected; nothing was changed.
    """
    method = _method(owner)
    covered = Covered(site, vars(owner)[method], traits)
    code_copy.add_hidden_generators(site, owner, innermost(covered.original))
    covered.never = never
    covered.rate = rate or covered.rate
    covered.choose = choose
    for ours in (recompute, training, schedule, draw):
        skip_module(ours)
    if isinstance(choose, FunctionType):
        # Compiled by itself, it would pass a stream of 64 bits between two graphs: too large for torch up to 2.6.
        skip_frames(choose)
    site.wrap_hot(owner, method, functools.partial(_dispatch, covered))
    COVERED[owner] = covered
    site.at_undo(functools.partial(_uncover, owner))
    site.at_undo(recompute.forget)
    return covered


def never_skip(site: Site, owner: type, method: Optional[str] = None) -> None:
    """Have ``owner`` run as at rate 0, whatever rates its instances hold.

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the method.
        method: the method, where it is not the one that draws: one that reads a rate, to scale with it.

    Raises:
        PatchError: the method does not read its rates from ``self``; nothing was changed.
    """
    method = _method(owner) if method is None else method
    original = vars(owner)[method]
    inner = innermost(original)
    if any(len(path) > 1 for path in rate_paths(original)):
        raise PatchError(f"{inner.__qualname__} does not hold its own rate")
    if not rate_paths(original):
        raise PatchError(f"no LayerDrop rate was found in {inner.__qualname__}")
    without_rates = code_copy.rebuild(original, inner, code_copy.without_rates(inner))
    covered = Covered(site, original) if draws_layers(original) else None
    if code_copy.NO_RATE not in vars(owner):
        # A list has a rate for each of its layers; below 0, for a number drawn may be 0.
        setattr(owner, code_copy.NO_RATE, _NoRates() if code_copy.iterates(original) else 0.0)
        site.at_undo(functools.partial(delattr, owner, code_copy.NO_RATE))
    site.wrap_hot(owner, method, lambda original: without_rates)
    if covered is not None:
        covered.never = True
        COVERED[owner] = covered
        site.at_undo(functools.partial(_uncover, owner))


class _NoRates:
    """The rates of a list of layers that skips none; torch.jit.script would compile a property."""

    def __get__(self, instance: Any, owner: Any = None) -> List[float]:
        return [] if instance is None else [-1.0] * len(instance)


def _dispatch(covered: Covered, original: Any) -> Callable[..., Any]:
    """The forward that decides between the original function and its copy."""
    scheduled, choose, rate = covered.scheduled, covered.choose, covered.rate

    def trains(self: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        call = choose(self, args, kwargs)
        return covered.answered(original if call is None else scheduled, call, self, args, kwargs)

    skip_frames(trains)

    # torch.compile follows this function in evaluation, and as far as the rate is zero in training.
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training and rate(self):
            return trains(self, args, kwargs)
        return original(self, *args, **kwargs)

    # torch.jit.script compiles the source of the function below, and looks up its names in the globals of this one.
    return FunctionType(forward.__code__, innermost(original).__globals__, forward.__name__, None, forward.__closure__)


COVERED: Dict[type, Covered] = {}


def _uncover(owner: type) -> None:
    COVERED.pop(owner, None)


def _read(module: Any, path: Tuple[str, ...]) -> Any:
    for name in path:
        # An instance may lack the attributes of some branches of its forward.
        module = getattr(module, name, 0)
    return module


def _reader(paths: Tuple[Tuple[str, ...], ...], listed: bool = False) -> Callable[[Any], Any]:
    """A function that reads a module's rate: the largest, if there are several, or if it is a list of them."""
    if len(paths) > 1:
        return lambda module: max(_number(_read(module, path)) for path in paths)
    if len(paths[0]) > 1:
        holder, last = paths[0]
        return lambda module: getattr(getattr(module, holder), last)
    (name,) = paths[0]
    if listed:
        return lambda module: _number(getattr(module, name))
    # This runs in every forward.
    return lambda module: getattr(module, name)


def _number(value: Any) -> float:
    if isinstance(value, (list, tuple)):
        return max(map(_number, value), default=0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def rate_of(module: Any) -> float:
    """The LayerDrop rate that a module really uses; 0 for a module that does not draw, or that never skips."""
    for method in METHODS:
        level = next((level for level in type(module).__mro__ if method in vars(level)), None)
        rate = None if level is None else _rate_in(level)
        if rate is not None:
            return _number(rate(module))
    return 0.0


def _rate_in(owner: type) -> Optional[Callable[[Any], Any]]:
    """A function that reads the rate of a class that draws, also of an unpatched one (DDPFIX_LAYERDROP=stock)."""
    covered = COVERED.get(owner)
    if covered is not None:
        return None if covered.never else covered.rate
    if owner not in _RATES:
        method = drawing_method(owner)
        original = None if method is None else vars(owner)[method]
        _RATES[owner] = None if original is None else _reader(rate_paths(original), code_copy.iterates(original))
    return _RATES[owner]


_RATES: weakref.WeakKeyDictionary[type, Optional[Callable[[Any], Any]]] = weakref.WeakKeyDictionary()


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers at a rate above 0."""
    rated = ((name, module, rate_of(module)) for name, module in model.named_modules())
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def shared_vector(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Call]:
    """The same, for a forward that draws one vector with a number for each layer."""
    call = shared_call(module, args, kwargs)
    if call is not None:
        call.vectors = True
    return call


def no_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Call:
    """The call in which nothing is skipped."""
    return Call(None, never=True)


def shared_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Call]:
    """The call of the current step, the one that a recomputation repeats, or outside of a wrapped model None."""
    past = recompute.repeated(module, args, kwargs)
    if past is not None:
        return Call(past)
    step = training.current()
    if step is None:
        return Call(None) if any(wanted(module, kwargs) for wanted in OBSERVED) else None
    base, name, number = step.stream(module)
    recompute.remember(module, args, kwargs, base, step)
    return StepCall(base, step, name, number)
