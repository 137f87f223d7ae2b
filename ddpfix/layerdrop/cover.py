"""Has the comparisons of a toolkit's own code give shared truths, and leaves everything else to that code.

A forward that skips layers at random has ``if torch.rand([]) < rate: skip``. For a training forward inside a wrapped
model a copy of that function runs, in which this comparison asks the schedule (:mod:`ddpfix.layerdrop.call`). The draw
is made as before and keeps its value; the toolkit's code still decides what a skipped layer returns, which layer may be
skipped and what the rate is. The original function is never changed: evaluation, single processes and all else run it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from types import FunctionType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ddpfix import log
from ddpfix.layerdrop import call as calls
from ddpfix.layerdrop import code_copy, decisions, rates, recompute, schedule, training
from ddpfix.layerdrop.call import Call, StepCall, layer_count, listed
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.numbers import may_draw
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import PatchError, Registry, Site

__all__ = [
    "COVERED",
    "RECORDERS",
    "OBSERVED",
    "Call",
    "Covered",
    "active",
    "cover",
    "drawing_classes",
    "drawing_method",
    "innermost",
    "layer_count",
    "listed",
    "rate_of",
    "rate_paths",
    "shared_call",
]


_NO_TRAITS = code_copy.Traits()


class Covered:
    """A function that draws, and its copy that follows the schedule.

    Args:
        function: with its decorators.
        traits: what is particular to the toolkit's code.
        examined: whether it was examined; what is certain of any code is shared elsewhere.

    Raises:
        PatchError: it has another shape than expected.
    """

    def __init__(self, function: Any, traits: code_copy.Traits = _NO_TRAITS, examined: bool = True) -> None:
        inner = innermost(function)
        found = _found(inner)
        shared = code_copy.chosen(found, examined)
        if not shared:
            reasons = [f"{each.refusal} ({_place(inner, each)})" for each in found.decisions if each.refusal]
            raise PatchError(reasons[0] if reasons else f"{inner.__qualname__} does not draw for layers")
        self.paths = rates.paths(found)
        self.path = self.paths[0] if self.paths else ()
        self.rate = rates.reader(found, shared, inner)
        self.examined, self.draws_itself = examined, not any(each.layers for each in shared)
        self.never = False
        self.choose: Callable[..., Optional[Call]] = lambda module, args, kwargs: None
        self.original = function
        self.generates = inspect.isgeneratorfunction(inner)
        copied = code_copy.scheduled(inner, traits, examined)
        skip_frames(copied)
        self.scheduled = code_copy.rebuild(function, inner, self._called(_recorded(copied)))

    def _called(self, copied: FunctionType) -> FunctionType:
        """The copy, which finds its call by itself when a decorator runs it again (activation checkpointing)."""

        @functools.wraps(copied)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if calls.CURRENT.get() is not None:
                return copied(module, *args, **kwargs)
            return self.answered(copied, self.choose(module, args, kwargs), module, args, kwargs)

        skip_frames(forward)
        return forward  # type: ignore[return-value]

    def answered(self, function: Any, call: Optional[Call], module: Any, args: Any, kwargs: Any) -> Any:
        """Run the function with the decisions of this call; with its own if there is none."""
        if call is None:
            return function(module, *args, **kwargs)
        if self.generates:
            return self._one_by_one(function(module, *args, **kwargs), call)
        token = calls.CURRENT.set(call)
        try:
            return function(module, *args, **kwargs)
        finally:
            calls.CURRENT.reset(token)
            call.ended()

    def _one_by_one(self, made: Iterator[Any], call: Call) -> Iterator[Any]:
        """The values of a generator; between two of its steps, its call is not the current one."""
        try:
            while True:
                token = calls.CURRENT.set(call)
                try:
                    value = next(made)
                except StopIteration:
                    return
                finally:
                    calls.CURRENT.reset(token)
                yield value
        finally:
            call.ended()


def _found(inner: Any) -> decisions.Found:
    if not isinstance(inner, FunctionType):
        raise PatchError(f"{inner!r} is not a Python function")
    return decisions.of(inner)


def _place(inner: FunctionType, decision: decisions.Decision) -> str:
    return f"{inner.__code__.co_filename}:{getattr(decision.node, 'lineno', 0)}"


def _recorded(copied: FunctionType) -> FunctionType:
    """The copied function with the recorders around it, inside of the decorators, where outputs are collected."""

    @functools.wraps(copied)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.CURRENT.get()
        begun = [(end, begin(self)) for begin, end in RECORDERS] if RECORDERS else ()
        result = copied(self, *args, **kwargs)
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
    return next((name for name in METHODS if name in vars(owner) and _decisions(vars(owner)[name])), None)


def _decisions(function: Any) -> Tuple[decisions.Decision, ...]:
    """The decisions of a function, proved or not; none where its source is not what runs."""
    try:
        return _found(innermost(function)).decisions
    except PatchError:
        return ()


def rate_paths(function: Any) -> Tuple[Tuple[str, ...], ...]:
    """Where a function reads its rates, in order: each as ``("layerdrop",)`` or ``("config", "layerdrop")``."""
    try:
        return rates.paths(_found(innermost(function)))
    except PatchError:
        return ()


def drawing_classes(model: Any) -> Dict[type, Any]:
    """The classes in a model that draw for layers, for a list of them or for themselves, with a module of each."""
    peers = set(training.peers(model))
    found: Dict[type, Any] = {}
    for module in model.modules():
        for level in type(module).__mro__:
            if level not in found and _draws_here(level, module in peers) and _has_parameters(module):
                found[level] = module
    return found


def check(owner: type, module: Any) -> None:
    """Raise unless the generators that a module holds are numpy's: others are the program's own way to agree.

    Args:
        owner: the class whose method draws.
        module: an instance.

    Raises:
        PatchError: it draws from another generator, or its source could not be read.
    """
    if drawing_method(owner) is None:
        raise PatchError(_unread(owner))
    for each in _decisions(vars(owner)[_method(owner)]):
        names = each.number.generator.split(".") if each.number is not None and each.number.generator else []
        if names and not calls.is_numpy_generator(functools.reduce(getattr, names, module)):
            raise PatchError(f"it draws from a generator of its own, {'.'.join(names)}")


def _draws_here(level: type, has_peers: bool) -> bool:
    method = drawing_method(level)
    if method is None:
        return bool(_unread(level))
    return any(each.layers or (has_peers and not each.is_part) for each in _decisions(vars(level)[method]))


# Names that only a rate at which layers are skipped has: where there is no source, they tell that something is missed.
_RATES_BY_NAME = ("layerdrop", "layer_drop", "stochastic_depth")


def _unread(level: type) -> str:
    """Why a method that draws, and names such a rate, could not be read; empty where there is none."""
    for inner in [innermost(vars(level)[name]) for name in METHODS if name in vars(level)]:
        if isinstance(inner, FunctionType) and may_draw(inner):
            names = inner.__code__.co_names
            if any(rate in name for name in names for rate in _RATES_BY_NAME):
                try:
                    decisions.of(inner)
                except PatchError as error:
                    return str(error)
    return ""


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None


def _method(owner: type) -> str:
    method = drawing_method(owner)
    if method is None:
        raise PatchError(f"{owner.__module__}.{owner.__qualname__} does not draw for layers")
    return method


def cover(
    site: Site,
    owner: type,
    choose: Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any],
    rate: Optional[Callable[[Any], float]] = None,
    traits: code_copy.Traits = _NO_TRAITS,
    examined: bool = True,
) -> Covered:
    """Put the schedule into the method of ``owner`` that draws (see :func:`drawing_method`).

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the method.
        choose: ``choose(module, args, kwargs)`` gives the :class:`Call` for a training forward; None: no change.
        rate: ``rate(module)`` gives the rate in force, where it is not the largest that the method compares with.
        traits: what is particular to the toolkit's code.
        examined: whether the code was examined.

    Raises:
        PatchError: the method has another shape than expected; nothing was changed.
    """
    method = _method(owner)
    covered = Covered(vars(owner)[method], traits, examined)
    covered.rate = rate or covered.rate
    covered.choose = choose
    for ours in (recompute, training, schedule, calls):
        skip_module(ours)
    if isinstance(choose, FunctionType):
        # Compiled by itself, it would pass a stream of 64 bits between two graphs: too large for torch up to 2.6.
        skip_frames(choose)
    site.wrap_hot(owner, method, functools.partial(_dispatch, covered))
    COVERED[owner] = covered
    site.at_undo(functools.partial(_uncover, owner))
    site.at_undo(recompute.forget)
    return covered


def never_skip(site: Site, owner: type, method: Optional[str] = None, zero: Tuple[str, ...] = ()) -> None:
    """Have ``owner`` run as at rate 0, whatever rates its instances hold.

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the method.
        method: the method, where it is not the one that draws: one that reads a rate, to scale with it.
        zero: the names of rates that are read as 0, beside those of its draws.

    Raises:
        PatchError: the source of the method is not what runs; nothing was changed.
    """
    name = _method(owner) if method is None else method
    original = vars(owner)[name]
    inner = innermost(original)
    without_skips = code_copy.rebuild(original, inner, code_copy.without_skips(inner, zero))
    covered = Covered(original) if method is None else None
    site.wrap_hot(owner, name, lambda original: without_skips)
    if covered is not None:
        covered.never = True
        COVERED[owner] = covered
        site.at_undo(functools.partial(_uncover, owner))


class _Run:
    """Runs the original function or its copy; pickled by value (cloudpickle), it is the original."""

    def __init__(self, covered: Covered, original: Any) -> None:
        self._covered, self._original, self._rate = covered, original, covered.rate

    # torch.compile follows this function in evaluation, and as far as the rate is zero in training.
    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        if module.training and self._rate(module):
            return self.trains(module, args, kwargs)
        return self._original(module, *args, **kwargs)

    def trains(self, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Run the copy where there is somebody to agree with."""
        covered = self._covered
        call = covered.choose(module, args, kwargs)
        return covered.answered(self._original if call is None else covered.scheduled, call, module, args, kwargs)

    def __reduce__(self) -> Any:
        return copy.copy, (self._original,)


skip_frames(_Run.trains)


def _dispatch(covered: Covered, original: Any) -> Callable[..., Any]:
    """The forward that decides between the original function and its copy."""
    run = _Run(covered, original)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self, *args, **kwargs)

    # torch.jit.script compiles the source of the function below, and looks up its names in the globals of this one. It
    # bears the original's file: a class that is pickled by value has its code with it.
    inner = innermost(original)
    code = forward.__code__.replace(
        co_filename=inner.__code__.co_filename, co_firstlineno=inner.__code__.co_firstlineno
    )
    return FunctionType(code, inner.__globals__, forward.__name__, None, forward.__closure__)


COVERED: Dict[type, Covered] = {}


def _uncover(owner: type) -> None:
    COVERED.pop(owner, None)


def rate_of(module: Any, has_peers: bool = True) -> float:
    """The rate at which a module skips layers, or is skipped; 0 for one that does not draw, or that never skips.

    Args:
        module: any module.
        has_peers: whether it stands in a list of modules of its class; one that does not is an augmentation, say.
    """
    for method in METHODS:
        level = next((level for level in type(module).__mro__ if method in vars(level)), None)
        rate = None if level is None else _rate_in(level, has_peers)
        if rate is not None:
            return rate(module) if _has_parameters(module) else 0.0
    return 0.0


def _rate_in(owner: type, has_peers: bool) -> Optional[Callable[[Any], float]]:
    """A function that reads the rate of a class that draws, also of an unpatched one (DDPFIX_LAYERDROP=stock)."""
    covered = COVERED.get(owner)
    if covered is not None:
        counts = has_peers or covered.examined or not covered.draws_itself
        return covered.rate if counts and not covered.never else None
    if (owner, has_peers) not in _RATES.setdefault(owner, {}):
        method = drawing_method(owner)
        read = None
        if method is not None:
            inner = innermost(vars(owner)[method])
            found = decisions.of(inner)
            counted = [
                each for each in found.decisions if each.rate and (each.layers or (has_peers and not each.is_part))
            ]
            read = rates.reader(found, counted, inner) if counted else None
        _RATES[owner][owner, has_peers] = read
    return _RATES[owner][owner, has_peers]


_RATES: weakref.WeakKeyDictionary[type, Dict[Any, Optional[Callable[[Any], float]]]] = weakref.WeakKeyDictionary()


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers, or is skipped, at a rate above 0."""
    peers = set(training.peers(model))
    rated = ((name, module, rate_of(module, module in peers)) for name, module in model.named_modules())
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def shared_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Call]:
    """The call of the current step, the one that a recomputation repeats, or outside of a wrapped model None."""
    past = recompute.repeated(module, args, kwargs)
    if past is not None:
        return Call(module, *past)
    step = training.current()
    if step is None:
        return Call(module, None, None) if any(wanted(module, kwargs) for wanted in OBSERVED) else None
    if not step.replica.is_announced:
        _announce(step.replica)
    base, name, number = step.stream(module)
    recompute.remember(module, args, kwargs, base, step)
    return StepCall(module, base, step, name, number)


def _announce(replica: training.Replica) -> None:
    """Log once that ranks skip the same layers: it is what changes in a program that was right before."""
    replica.is_announced = True
    skipping = [] if replica.is_alone else active(replica.module())
    classes = {type(module): f"{type(module).__name__} (rate {rate:g})" for _, module, rate in skipping}
    named = [text for kind, text in classes.items() if any(level in COVERED for level in kind.__mro__)]
    text = f"all ranks skip the same layers of {', '.join(named)}"
    if named and log.first_time(text):
        log.info(text)
