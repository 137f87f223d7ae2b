"""Answers a toolkit's own random draws with shared ones, and leaves everything else to the toolkit's own code.

A forward that skips layers at random reads ``if torch.rand([]) < rate: skip``. For a training forward inside a wrapped
model we run a copy of that function in which the names ``torch``, ``random`` and ``numpy`` lead to look-alikes. They
take the stock number first, so every generator advances as in stock, and answer with a :class:`Draw` instead: the
schedule's number, which notes the comparison that the toolkit makes with it. What a skipped layer returns, which layer
may be skipped and what the rate is stays the toolkit's business. The stock function is never changed: it serves
evaluation, single processes and everything else.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import sys
from contextvars import ContextVar
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpfix import recall, sync
from ddpfix.registry import PatchError, Site

_SOURCES = ("torch", "random", "np", "numpy")
_DRAWS = frozenset(("rand", "uniform", "random"))
_SHARDED = ("is_fsdp_managed_module",)
_HIDDEN = "_ddpfix_"
_CALL: ContextVar[Optional[Call]] = ContextVar("ddpfix_call", default=None)


class Draw(float):
    """A number in [0, 1) that remembers what it decided: toolkits skip if it is below the rate, or keep if above."""

    __slots__ = ("call", "index")
    call: Call
    index: int

    def __lt__(self, rate: Any) -> bool:
        return self._note(float(self) < rate)

    def __le__(self, rate: Any) -> bool:
        return self._note(float(self) <= rate)

    def __gt__(self, rate: Any) -> bool:
        return not self._note(not float(self) > rate)

    def __ge__(self, rate: Any) -> bool:
        return not self._note(not float(self) >= rate)

    def _note(self, skip: Any) -> bool:
        if skip:
            self.call.skipped.append(self.index)
        return bool(skip)


class Call:
    """One training call of a function that draws: where its numbers come from and what they decided.

    ``base`` is a stream of :mod:`ddpfix.sync`, or None to keep the stock numbers and only watch; ``never`` answers so
    that nothing is skipped.
    """

    __slots__ = ("base", "drawn", "never", "skipped")

    def __init__(self, base: Optional[int], never: bool = False) -> None:
        self.base = base
        self.never = never
        self.drawn = 0
        self.skipped: List[int] = []

    def answer(self, stock: Any) -> Draw:
        index = self.drawn
        self.drawn = index + 1
        if self.never:
            # Above every rate, whichever way round the toolkit compares.
            draw = Draw(2.0)
        elif self.base is None:
            draw = Draw(stock)
        else:
            draw = Draw(sync.uniform(self.base, index))
        draw.call, draw.index = self, index
        return draw

    def close(self, module: Any) -> None:
        """Called when the call has ended, whether it returned or raised."""


class _LookAlike:
    """Stands for a module in the copied function: everything is the real module's, except the draws."""

    def __init__(self, module: Any, draws: Dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(draws)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _scalar_draw(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def draw(*args: Any, **kwargs: Any) -> Any:
        value = stock(*args, **kwargs)
        call = _CALL.get()
        # Only a single number decides about a layer; a tensor of draws is noise or a mask.
        if call is None or (not isinstance(value, float) and getattr(value, "shape", None) != ()):
            return value
        return call.answer(value)

    return draw


def _look_alike(module: ModuleType) -> _LookAlike:
    if module.__name__ == "torch":
        return _LookAlike(module, {"rand": _scalar_draw(module.rand)})
    if module is random:
        return _LookAlike(module, {name: _scalar_draw(getattr(random, name)) for name in ("random", "uniform")})
    generators = module.random
    names = ("rand", "random", "random_sample", "uniform")
    return _LookAlike(
        module, {"random": _LookAlike(generators, {name: _scalar_draw(getattr(generators, name)) for name in names})}
    )


def innermost(function: Any) -> Any:
    """The function below all decorators that left a ``__wrapped__``."""
    return inspect.unwrap(function)


def rate_path(function: Any) -> Optional[Tuple[str, ...]]:
    """Where a forward reads its LayerDrop rate: ``("layerdrop",)`` or ``("config", "layerdrop")``; None if nowhere."""
    before = ""
    for instruction in dis.get_instructions(innermost(function)):
        name = instruction.argval
        if isinstance(name, str) and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if "layerdrop" in name or "layer_drop" in name:
                return ("config", name) if before == "config" else (name,)
            before = name
        else:
            before = ""
    return None


def draws_layers(function: Any) -> bool:
    """Whether this forward names a LayerDrop rate and a scalar random draw: it decides about layers by itself."""
    code = getattr(innermost(function), "__code__", None)
    if code is None or not _DRAWS.intersection(code.co_names):
        return False
    return rate_path(function) is not None


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
        copy = _copy(inner, _rename(site, inner))
        skip_frames(copy)
        self.scheduled = _rebuild(function, inner, _recorded(copy))


def _recorded(copy: FunctionType) -> FunctionType:
    """The copied function with the recorders around it, inside of the decorators, where outputs are collected."""

    @functools.wraps(copy)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _CALL.get()
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


def _rename(site: Site, function: FunctionType) -> CodeType:
    """The function's code with its random sources renamed to look-alikes, which are put into its globals."""
    code = function.__code__
    names = {
        name: _HIDDEN + name
        for name in _SOURCES
        if name in code.co_names and isinstance(function.__globals__.get(name), ModuleType)
    }
    if not names:
        raise PatchError(f"{function.__qualname__} draws from a source that is not torch, random or numpy")
    names.update({name: _HIDDEN + name for name in _SHARDED if name in code.co_names and name in function.__globals__})
    for instruction in dis.get_instructions(code):
        if instruction.argval in names and instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CONST"):
            names.pop(instruction.argval)
    home = function.__globals__
    for name, hidden in names.items():
        if hidden not in home:
            home[hidden] = _unless_shared(home[name]) if name in _SHARDED else _look_alike(home[name])
            site.at_undo(functools.partial(home.pop, hidden, None))
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names))


def _unless_shared(asks: Callable[..., bool]) -> Callable[..., bool]:
    """transformers runs every layer of a sharded model, because ranks might disagree. Here they do not."""

    @functools.wraps(asks)
    def must_run_all(*args: Any, **kwargs: Any) -> bool:
        return not isinstance(_CALL.get(), _StepCall) and asks(*args, **kwargs)

    return must_run_all


def _copy(function: FunctionType, code: CodeType) -> FunctionType:
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return copy


def _rebuild(function: Any, inner: Any, replacement: Any) -> Any:
    """A copy of a chain of decorators around ``inner`` that ends in ``replacement``."""
    if function is inner:
        return replacement
    below = function.__wrapped__
    cells = getattr(function, "__closure__", None) or ()
    if not isinstance(function, FunctionType) or not any(cell.cell_contents is below for cell in cells):
        raise PatchError(f"the decorator around {inner.__qualname__} does not hold it in a closure")
    rebuilt = _rebuild(below, inner, replacement)
    closure = tuple(CellType(rebuilt) if cell.cell_contents is below else cell for cell in cells)
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__dict__["__wrapped__"] = rebuilt
    return copy


def skip_frames(function: Any) -> None:
    """Have torch.compile run this function as plain Python and compile what it calls (the layers).

    The decisions change with every step: a graph that had them inside would be compiled anew for each pattern.
    """
    _skip_code(function.__code__, and_all_below=False)
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "ddpfix: the layers to skip are chosen anew in every step"


def _skip_code(code: CodeType, and_all_below: bool) -> None:
    """Mark a code object for torch's frame evaluation, without importing torch.compile (seconds) to do it."""
    from torch import _C

    frames = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        below = actions.SKIP if and_all_below else actions.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, below))


def skip_module(module: ModuleType) -> None:
    """Have torch.compile leave the functions of one of our modules alone, and what they call."""
    for value in list(vars(module).values()):
        inner = vars(value).values() if isinstance(value, type) else (value,)
        for function in inner:
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                _skip_code(function.__code__, and_all_below=True)


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
    for ours in (recall, sync, sys.modules[__name__]):
        skip_module(ours)
    rate = _reader(covered.path)

    def make(stock: Any) -> Callable[..., Any]:
        scheduled = covered.scheduled

        def training(self: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
            call = choose(self, args, kwargs)
            if call is None:
                return stock(self, *args, **kwargs)
            token = _CALL.set(call)
            try:
                return scheduled(self, *args, **kwargs)
            finally:
                _CALL.reset(token)
                call.close(self)

        skip_frames(training)

        # torch.compile follows this function in evaluation, and as far as the rate is zero in training.
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.training and rate(self):
                return training(self, args, kwargs)
            return stock(self, *args, **kwargs)

        return forward

    site.often(owner, "forward", make)
    COVERED[owner] = covered
    site.at_undo(functools.partial(COVERED.pop, owner, None))
    return covered


COVERED: Dict[type, Covered] = {}


def _reader(path: Tuple[str, ...]) -> Callable[[Any], Any]:
    if len(path) == 1:
        (name,) = path
        return lambda module: getattr(module, name)
    holder, name = path
    return lambda module: getattr(getattr(module, holder), name)


def rate_of(module: Any) -> float:
    """The LayerDrop rate that a covered module really uses; 0 for a module that does not draw."""
    for level in type(module).__mro__:
        if level in COVERED and "forward" in vars(level):
            value = _reader(COVERED[level].path)(module)
            counts = isinstance(value, (int, float)) and not COVERED[level].never
            return float(value) if counts else 0.0
    return 0.0


def active(model: Any) -> List[Tuple[str, Any, float]]:
    """(name, module, rate) of every module of ``model`` that skips layers at a rate above 0."""
    rated = ((name, module, rate_of(module)) for name, module in model.named_modules())
    return [(name, module, rate) for name, module, rate in rated if rate > 0]


def shared_call(module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Call]:
    """The call of the current step, the call that a recomputation repeats, or None outside of a wrapped model."""
    past = recall.repeated(module, args, kwargs)
    if past is not None:
        return Call(past)
    step = sync.current()
    if step is None:
        return None
    base, name, number = step.stream(module)
    recall.remember(module, args, kwargs, base, step)
    return _StepCall(base, step, name, number)


class _StepCall(Call):
    """A call within a step: when it ends, the step learns which layers it skipped."""

    __slots__ = ("name", "number", "step")

    def __init__(self, base: int, step: sync.Step, name: str, number: int) -> None:
        super().__init__(base)
        self.step, self.name, self.number = step, name, number

    def close(self, module: Any) -> None:
        if self.skipped:
            first = first_layer(module, self)
            self.step.skipped.extend(sync.Skip(self.name, self.number, first + index) for index in self.skipped)


def first_layer(module: Any, call: Call) -> int:
    """The layer that the call's first draw was for: WavLM draws nothing for its first layer (transformers 5)."""
    return max(0, layer_count(module) - call.drawn)


def layer_count(module: Any) -> int:
    """How many layers a module has: its list ``layers``, or the longest list of modules in it."""
    layers = getattr(module, "layers", None)
    if layers is not None:
        return len(layers)
    return max((len(child) for child in module.children() if type(child).__name__ == "ModuleList"), default=0)
