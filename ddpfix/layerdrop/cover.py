"""Has the comparisons of a toolkit's own code give shared truths, and leaves everything else to that code.

A forward that skips layers at random has ``if torch.rand([]) < rate: skip``. For a training forward inside a wrapped
model a copy of that function runs, in which this comparison asks :mod:`ddpfix.layerdrop.shared_skips`. The draw is made
as before and keeps its value; the toolkit's code still decides what a skipped layer returns, which layer may be skipped
and what the rate is. The original function is never changed: evaluation, single processes and all else run it.
"""

from __future__ import annotations

import copy
import functools
from types import FunctionType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from ddpfix import log
from ddpfix.layerdrop import code_copy, comparisons, recompute, shared_skips, training
from ddpfix.layerdrop.code_copy import innermost
from ddpfix.layerdrop.drawing_classes import UNREADABLE, drawing_methods, held
from ddpfix.layerdrop.shared_method import Covered, Skipping
from ddpfix.layerdrop.shared_skips import EXTENSIONS, Call
from ddpfix.models import identity, internals
from ddpfix.patching.dynamo import skip_frames, skip_module, uncompiled
from ddpfix.patching.site import PatchError, Site
from ddpfix.user_code import full_name

# The classes whose methods were covered.
COVERED: Dict[type, Skipping] = {}


def cover(site: Site, owner: type, checks: Tuple[str, ...] = (), examined: bool = True) -> Covered:
    """Put the schedule into the methods of ``owner`` that draw (see :func:`drawing_methods`).

    Raises:
        PatchError: no method has the expected shape; nothing was changed.
    """
    made, refused = _covering(owner, checks, examined)
    for ours in (identity, recompute, training, shared_skips):
        skip_module(ours)
    for covered in made:
        covered.choose = uncompiled(shared_call)
        site.wrap_hot(owner, covered.method, functools.partial(_dispatch, covered))
    return remember(site, owner, made, refused)


def _covering(owner: type, checks: Tuple[str, ...] = (), examined: bool = True) -> Tuple[List[Covered], List[str]]:
    """Return the methods of a class that can be covered, and why others cannot; PatchError where none can."""
    made: List[Covered] = []
    refused: List[str] = []
    for method in drawing_methods(owner):
        try:
            made.append(Covered(owner, method, checks, examined))
        except PatchError as error:
            refused.append(str(error))
    if not made:
        raise PatchError(refused[0] if refused else f"{full_name(owner)} does not draw for layers")
    return made, refused


S = TypeVar("S", bound=Skipping)


def remember(site: Site, owner: type, made: Sequence[S], refused: Sequence[str] = ()) -> S:
    """Record what covers a class, until undo."""
    first = COVERED[owner] = made[0]
    first.others = made[1:]
    first.refused = [*refused, *(text for each in made for text in each.refused)]
    site.at_undo(functools.partial(COVERED.pop, owner, None))
    return first


def never_skip(site: Site, owner: type, method: Optional[str] = None, zero: Tuple[str, ...] = ()) -> None:
    """Have ``owner`` run as at rate 0, whatever rates its instances hold.

    Args:
        method: the method, where it is not one that draws: one that reads a rate, to scale with it.
        zero: the names of rates that are read as 0, beside those of its draws.

    Raises:
        PatchError: the source of a method is not what runs; nothing was changed.
    """
    made = _covering(owner)[0] if method is None else []
    names = [each.method for each in made] if method is None else [method]
    for name, copied in [(name, _without_skips(owner, name, zero)) for name in names]:
        site.wrap_hot(owner, name, functools.partial(_never, copied))
    for covered in made:
        covered.never = True
    if made:
        remember(site, owner, made)


def _without_skips(owner: type, name: str, zero: Tuple[str, ...]) -> Any:
    inner = innermost(vars(owner)[name])
    return code_copy.rebuild(vars(owner)[name], inner, code_copy.without_skips(inner, zero))


def _never(copied: Any, original: Any) -> Any:
    return copied


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


def shared_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], method: str = "") -> Optional[Call]:
    """Return the call of the current step, the one that a recomputation repeats, or outside of a wrapped model None."""
    past = recompute.repeated(module, args, kwargs, method)
    if past is not None:
        return Call(module, *past, method)
    step = training.current()
    if step is None:
        is_observed = any(each.observes(module, kwargs) for each in EXTENSIONS)
        return Call(module, method=method) if is_observed else None
    if not step.replica.is_announced:
        _announce(step.replica)
    base, name, number = step.stream(module)
    recompute.remember(module, args, kwargs, base, step, method)
    return Call(module, base, step.replica, method, step, name, number)


# torch.compile ended with errors of its own in what this calls (2.6, 2.8), and over a stream of 64 bits (up to 2.6).
skip_frames(shared_call, and_all_below=True)


def _announce(replica: training.Replica) -> None:
    """Log once that ranks skip the same layers: it is what changes in a program that was right before."""
    replica.is_announced = True
    skipping = [] if replica.is_alone else active(replica.module())
    classes = {type(module): f"{type(module).__name__} (rate {rate:g})" for _, module, rate in skipping}
    named = [classes[kind] for kind in dict.fromkeys(type(module) for _, module, _ in skipping if is_shared(module))]
    text = f"all ranks skip the same layers of {', '.join(named)}"
    if named and log.first_time(text):
        log.info(text)


def record(site: Site, owner: type, method: str, rate: Callable[[Any], float]) -> None:
    """Record that a patch leaves out layers in a method of a class by itself (:meth:`Call.drops`).

    DDP and all reports know of it. Where DDP does not look for unused parameters, a layer that is left out has
    gradients of zeros.
    """
    remember(site, owner, [Skipping(method, rate, examined=True)])


def rate_of(module: Any, has_peers: bool = True) -> float:
    """Return the rate at which a module skips layers, or is skipped; 0 for one that does not draw, or that never skips.

    Args:
        has_peers: whether it stands in a list of modules of its class; one that does not is an augmentation, say.
    """
    rates = [0.0]
    for level in type(module).__mro__:
        covered = COVERED.get(level)
        for each in _uncovered(level) if covered is None else (covered, *covered.others):
            # As far as no subclass has another method.
            is_own = next(other for other in type(module).__mro__ if each.method in vars(other)) is level
            if is_own and not each.never and each.applies(module, has_peers):
                rates.append(each.rate(module))
    return max(rates)


def _uncovered(owner: type) -> Tuple[Skipping, ...]:
    """Return the methods that draw and are as shipped (DDPFIX_LAYERDROP=stock), or cannot be covered."""
    known = training.TRAINED.rates
    if owner not in known:
        known[owner] = tuple(_as_shipped(vars(owner)[name], name) for name in drawing_methods(owner))
    return known[owner]


def _as_shipped(method: Any, name: str) -> Skipping:
    decided = [each for each in comparisons.of(innermost(method)).decisions if each.rate is not None]
    read = comparisons.reader(decided)

    def rate(module: Any) -> float:
        """Return the rate of this module; 0 where only a forward can read it."""
        return 0.0 if any(held(module, path) is UNREADABLE for path in comparisons.paths(decided)) else read(module)

    return Skipping(name, rate, decided)


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers, or is skipped, at a rate above 0."""
    peers = set(map(id, training.peers(model)))
    rated = ((name, module, rate_of(module, id(module) in peers)) for name, module in internals.named_modules(model))
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def is_shared(module: Any) -> bool:
    """Return whether all ranks take the same decisions for a module that skips layers."""
    covered = [COVERED[level] for level in type(module).__mro__ if level in COVERED]
    return any(not each.never for each in covered)


def may_skip(model: Any) -> bool:
    """Return whether a model has modules that draw for their layers, at whatever rate now."""
    return any(level in COVERED for _, part in internals.named_modules(model) for level in type(part).__mro__)


def needs_flag(module: Any, decided: bool) -> bool:
    """Return whether a module leaves parameters without gradient; ``decided``: the program has DDP look for none."""
    covered = (COVERED.get(level) for level in type(module).__mro__)
    # A patch that leaves layers out gives them gradients of zeros.
    return not decided or not any(each is not None and not each.decisions for each in covered)
