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
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from ddpfix import log
from ddpfix.layerdrop import call as calls
from ddpfix.layerdrop import code_copy, decisions, rates, recompute, schedule, training
from ddpfix.layerdrop.call import Call, StepCall, layer_count, listed
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.drawing import (
    applies,
    check,
    drawing_classes,
    drawing_method,
    drawing_methods,
    found,
    rate_paths,
)
from ddpfix.patching.dynamo import skip_frames, skip_module
from ddpfix.patching.site import PatchError, Registry, Site

__all__ = [
    "COVERED",
    "RECORDERS",
    "OBSERVED",
    "Call",
    "Covered",
    "active",
    "check",
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
    """A method that draws, and its copy that follows the schedule.

    Args:
        owner: the class that has it.
        method: its name.
        traits: what is particular to the toolkit's code.
        examined: whether it was examined; what is certain of any code is shared elsewhere.

    Raises:
        PatchError: it has another shape than expected.
    """

    def __init__(self, owner: type, method: str, traits: code_copy.Traits = _NO_TRAITS, examined: bool = True) -> None:
        function = vars(owner)[method]
        inner = innermost(function)
        read = found(inner, owner)
        self.method, self.helpers, self._home = method, read.helpers, inner.__globals__
        # Other methods of the class that draw, and what ranks cannot share of all of them.
        self.others: List[Covered] = []
        self.refused = self.refusals(owner, method, read) if any(each.refusal for each in read.decisions) else []
        shared = code_copy.chosen(read, examined)
        if not shared:
            raise PatchError(self.refusals(owner, method, read)[0])
        self.paths = rates.paths(read)
        self.path = self.paths[0] if self.paths else ()
        self.rate = rates.reader(read, shared, inner)
        self.examined, self.decisions = examined, shared
        self.never = False
        self.choose: Callable[..., Optional[Call]] = lambda module, args, kwargs: None
        self.original = function
        self.generates = inspect.isgeneratorfunction(inner)
        copied = code_copy.scheduled(inner, traits, examined, owner)
        skip_frames(copied)
        self.scheduled = code_copy.rebuild(function, inner, self._called(_recorded(copied)))

    def _called(self, copied: FunctionType) -> FunctionType:
        """Return the copy, which finds its call by itself when a decorator runs it again (activation checkpointing)."""

        @functools.wraps(copied)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            current = calls.CURRENT.get()
            if current is not None and current.method == self.method and current.module is module:
                return copied(module, *args, **kwargs)
            return self.answered(copied, self.choose(module, args, kwargs, self.method), module, args, kwargs)

        skip_frames(forward)
        return forward  # type: ignore[return-value]

    @staticmethod
    def refusals(owner: type, method: str, read: decisions.Found) -> List[str]:
        """Return why ranks cannot share decisions of a method, each with its line."""
        code = innermost(vars(owner)[method]).__code__
        found = [(each.refusal, getattr(each.node, "lineno", 0)) for each in read.decisions if each.refusal]
        return [f"{why} ({code.co_filename}:{line})" for why, line in found] or [f"{method} draws for a part of it"]

    def applies(self, module: Any, has_peers: bool) -> bool:
        """Return whether its decisions are about layers in this module."""
        return any(applies(each, module, has_peers or self.examined) for each in self.decisions)

    def is_still(self, module: Any) -> bool:
        """Return whether a module would call the functions that its copy has written out."""
        return all(each.is_still(module, self._home) for each in self.helpers)

    def replaced(self, module: Any) -> List[str]:
        """Return the names of such functions, of all methods of the class, for which a module has others."""
        return [
            helper.name
            for each in (self, *self.others)
            for helper in each.helpers
            if not helper.is_still(module, each._home)
        ]

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
        """Yield the values of a generator; between two of its steps, its call is not the current one."""
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


def _recorded(copied: FunctionType) -> FunctionType:
    """Return the copied function with the recorders around it, inside of the decorators, where outputs collect."""

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


def cover(
    site: Site,
    owner: type,
    choose: Callable[..., Any],
    rate: Optional[Callable[[Any], float]] = None,
    traits: code_copy.Traits = _NO_TRAITS,
    examined: bool = True,
) -> Covered:
    """Put the schedule into the methods of ``owner`` that draw (see :func:`drawing_methods`).

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the methods.
        choose: ``choose(module, args, kwargs, method)`` gives the :class:`Call` of a training forward; None: no change.
        rate: ``rate(module)`` gives the rate in force, where it is not the largest that the methods compare with.
        traits: what is particular to the toolkit's code.
        examined: whether the code was examined.

    Raises:
        PatchError: no method has the expected shape; nothing was changed.
    """
    made, refused = _covering(owner, drawing_methods(owner), traits, examined)
    if not made:
        raise refused[0] if refused else PatchError(f"{owner.__module__}.{owner.__qualname__} does not draw for layers")
    for ours in (recompute, training, schedule, calls):
        skip_module(ours)
    if isinstance(choose, FunctionType):
        # Compiled by itself, it would pass a stream of 64 bits between two graphs: too large for torch up to 2.6.
        skip_frames(choose)
    for covered in made:
        covered.rate, covered.choose = rate or covered.rate, choose
        site.wrap_hot(owner, covered.method, functools.partial(_dispatch, covered))
    return remember(site, owner, made, refused)


def _covering(
    owner: type, methods: Sequence[str], traits: code_copy.Traits = _NO_TRAITS, examined: bool = True
) -> Tuple[List[Covered], List[PatchError]]:
    """Return the methods of a class that can be covered, and why others cannot."""
    made: List[Covered] = []
    refused: List[PatchError] = []
    for method in methods:
        try:
            made.append(Covered(owner, method, traits, examined))
        except PatchError as error:
            refused.append(error)
    return made, refused


def remember(site: Site, owner: type, made: List[Covered], refused: Sequence[PatchError] = ()) -> Covered:
    """Record what covers a class, until undo."""
    first = COVERED[owner] = made[0]
    first.others = made[1:]
    first.refused = [*map(str, refused), *(text for each in made for text in each.refused)]
    site.at_undo(functools.partial(_uncover, owner))
    site.at_undo(recompute.forget)
    return first


def never_skip(site: Site, owner: type, method: Optional[str] = None, zero: Tuple[str, ...] = ()) -> None:
    """Have ``owner`` run as at rate 0, whatever rates its instances hold.

    Args:
        site: records the change.
        owner: the class whose own ``__dict__`` holds the methods.
        method: the method, where it is not one that draws: one that reads a rate, to scale with it.
        zero: the names of rates that are read as 0, beside those of its draws.

    Raises:
        PatchError: the source of a method is not what runs; nothing was changed.
    """
    drawing = drawing_methods(owner) if method is None else (method,)
    if not drawing:
        raise PatchError(f"{owner.__module__}.{owner.__qualname__} does not draw for layers")
    made, refused = _covering(owner, drawing) if method is None else ([], [])
    if refused and not made:
        raise refused[0]
    names = [each.method for each in made] or drawing
    for name, copied in [(name, _without_skips(owner, name, zero)) for name in names]:
        covered = next((each for each in made if each.method == name), None)
        site.wrap_hot(owner, name, functools.partial(_never, copied, covered))
    for covered in made:
        covered.never = True
    if made:
        remember(site, owner, made)


def _without_skips(owner: type, name: str, zero: Tuple[str, ...]) -> Any:
    inner = innermost(vars(owner)[name])
    return code_copy.rebuild(vars(owner)[name], inner, code_copy.without_skips(inner, zero, owner))


def _never(copied: Any, covered: Optional[Covered], original: Any) -> Any:
    """Return the copy that never skips; where a subclass has other helpers, the original runs."""
    if covered is None or not covered.helpers:
        return copied
    known = covered

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (copied if known.is_still(self) else original)(self, *args, **kwargs)

    return forward


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
        if covered.helpers and not covered.is_still(module):
            return self._original(module, *args, **kwargs)
        call = covered.choose(module, args, kwargs, covered.method)
        return covered.answered(self._original if call is None else covered.scheduled, call, module, args, kwargs)

    def __reduce__(self) -> Any:
        return copy.copy, (self._original,)


skip_frames(_Run.trains)


def _dispatch(covered: Covered, original: Any) -> Callable[..., Any]:
    """Return the forward that decides between the original function and its copy."""
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
    """Return the rate at which a module skips layers, or is skipped; 0 for one that does not draw, or that never skips.

    Args:
        module: any module.
        has_peers: whether it stands in a list of modules of its class; one that does not is an augmentation, say.
    """
    rates = [_rate_at(level, module, has_peers) for level in type(module).__mro__]
    return max(rates, default=0.0)


def _rate_at(level: type, module: Any, has_peers: bool) -> float:
    """Return the rate by the methods of one class of a module, as far as no subclass has other ones."""
    covered = COVERED.get(level)
    found: Sequence[Union[Covered, _Uncovered]]
    found = _uncovered(level) if covered is None else (covered, *covered.others)
    rates = [0.0]
    for each in found:
        is_own = next(other for other in type(module).__mro__ if each.method in vars(other)) is level
        if is_own and each.applies(module, has_peers):
            rates.append(0.0 if each.never else each.rate(module))
    return max(rates)


class _Uncovered:
    """A method that draws and is as shipped (DDPFIX_LAYERDROP=stock), or cannot be covered."""

    never = examined = False

    def __init__(self, owner: type, method: str) -> None:
        function = innermost(vars(owner)[method])
        read = decisions.of(function, owner)
        self.method = method
        self.decisions = tuple(each for each in read.decisions if each.rate is not None)
        self.rate = rates.reader(read, self.decisions, function)

    def applies(self, module: Any, has_peers: bool) -> bool:
        """Return whether its decisions are about layers in this module."""
        return any(applies(each, module, has_peers) for each in self.decisions)


def _uncovered(owner: type) -> Tuple[_Uncovered, ...]:
    if owner not in _RATES:
        _RATES[owner] = tuple(_Uncovered(owner, method) for method in drawing_methods(owner))
    return _RATES[owner]


_RATES: weakref.WeakKeyDictionary[type, Tuple[_Uncovered, ...]] = weakref.WeakKeyDictionary()


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers, or is skipped, at a rate above 0."""
    peers = set(training.peers(model))
    rated = ((name, module, rate_of(module, module in peers)) for name, module in model.named_modules())
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def may_skip(model: Any) -> bool:
    """Return whether a model has modules that draw for their layers, at whatever rate now."""
    return any(level in COVERED for part in model.modules() for level in type(part).__mro__)


def shared_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], method: str = "") -> Optional[Call]:
    """Return the call of the current step, the one that a recomputation repeats, or outside of a wrapped model None."""
    past = recompute.repeated(module, args, kwargs, method)
    if past is not None:
        return Call(module, *past, method=method)
    step = training.current()
    if step is None:
        return Call(module, None, None, method=method) if any(wanted(module, kwargs) for wanted in OBSERVED) else None
    if not step.replica.is_announced:
        _announce(step.replica)
    base, name, number = step.stream(module)
    recompute.remember(module, args, kwargs, base, step, method)
    return StepCall(module, base, step, name, number, method)


def _announce(replica: training.Replica) -> None:
    """Log once that ranks skip the same layers: it is what changes in a program that was right before."""
    replica.is_announced = True
    skipping = [] if replica.is_alone else active(replica.module())
    classes = {type(module): f"{type(module).__name__} (rate {rate:g})" for _, module, rate in skipping}
    named = [text for kind, text in classes.items() if any(level in COVERED for level in kind.__mro__)]
    text = f"all ranks skip the same layers of {', '.join(named)}"
    if named and log.first_time(text):
        log.info(text)
