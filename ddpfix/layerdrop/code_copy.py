"""Copies a function that draws, so that its draws can be replaced; the function itself is never changed.

In the copy the names ``torch``, ``random`` and ``numpy`` refer to look-alikes. A look-alike first draws the original
number, so every generator advances as it does without ddpfix.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Tuple

from ddpfix.layerdrop import draw
from ddpfix.patching.site import PatchError, Registry, Site
from ddpfix.patching.temporary import LookAlike

_SOURCES = ("torch", "random", "np", "numpy")
_DRAWS = frozenset(("rand", "uniform", "uniform_", "random"))
# The types of what modules and generators draw with; numpy's functions have the last one.
_METHODS = ("builtin_function_or_method", "method", "cython_function_or_method")
# Names of rates in code: LayerDrop, stochastic depth, and a branch of a layer that is dropped.
RATES = ("layerdrop", "layer_drop", "stochastic_depth_rate", "branch_drop_rate")
# What a toolkit calls its rates beside these, as whole names: a patch registers them.
RATE_NAMES: Registry[str] = Registry("each forward that skips layers")
# The name of the rate, or rates, in a list of modules that skips some of them; elsewhere it may be anything.
_RATE_OF_LIST = "p"
# Names under which a module may hold a numpy generator of its own.
_GENERATORS = ("rng",)
_HIDDEN = "_ddpfix_"


class Traits(NamedTuple):
    """What is particular to the code of one toolkit.

    Attributes:
        checks: functions that a forward calls to know whether all layers have to run, skipped ones included.
        skipped_output: the constant that stands for the outputs of a skipped layer where it has fewer of them than a
            layer that ran; it is made as long as theirs.
    """

    checks: Tuple[str, ...] = ()
    skipped_output: Tuple[None, ...] = ()


class _LookAlike(LookAlike):
    """Stands for a module in the copied function, which looks up what it draws from by the hidden names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self, name[len(_HIDDEN) :]) if name.startswith(_HIDDEN) else getattr(self._original, name)


def _scalar_draw(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        call = draw.CURRENT.get()
        if call is None:
            return value
        shape = () if isinstance(value, float) else getattr(value, "shape", None)
        if call.vectors and shape is not None and len(shape) == 1:
            return call.answer_all(value)
        if shape == (1,):
            # Read with .item(), it is a single number; used as it is, it is noise.
            value.item = functools.partial(call.answer, value.item())
        # Only a single number decides about a layer; a tensor of draws is noise or a mask.
        return call.answer(value) if shape == () else value

    return drawn


def _vector(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.empty(n).uniform_()`` draws one number a layer for all layers at once."""

    @functools.wraps(original)
    def empty(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        call = draw.CURRENT.get()
        if call is not None and value.dim() == 1:
            value.uniform_ = functools.partial(_filled, call, value)
        return value

    return empty


def _filled(call: draw.Call, value: Any, *args: Any, **kwargs: Any) -> Any:
    del value.uniform_
    value.uniform_(*args, **kwargs)
    return value if args or kwargs else call.answer_all(value)


def _look_alike(module: ModuleType) -> _LookAlike:
    if module.__name__ == "torch":
        return _LookAlike(module, {"rand": _scalar_draw(module.rand), "empty": _vector(module.empty)})
    if module is random:
        return _LookAlike(module, {name: _scalar_draw(getattr(random, name)) for name in ("random", "uniform")})
    generators = module.random
    names = ("rand", "random", "random_sample", "uniform")
    return _LookAlike(
        module, {"random": _LookAlike(generators, {name: _scalar_draw(getattr(generators, name)) for name in names})}
    )


def innermost(function: Any) -> Any:
    """The function below all decorators that set ``__wrapped__``."""
    return inspect.unwrap(function)


def _is_rate(name: str) -> bool:
    return any(rate in name for rate in RATES) or name in RATE_NAMES


def rate_paths(function: Any) -> Tuple[Tuple[str, ...], ...]:
    """Where a forward reads its rates, in order: each as ``("layerdrop",)`` or ``("config", "layerdrop")``."""
    paths: List[Tuple[str, ...]] = []
    before = ""
    for instruction in _instructions(innermost(function).__code__):
        name = instruction.argval
        if isinstance(name, str) and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if _is_rate(name) or (name == _RATE_OF_LIST and iterates(function)):
                paths.append(("config", name) if before == "config" else (name,))
            before = name
        else:
            before = ""
    return tuple(dict.fromkeys(paths))


# Each class that is covered asks a handful of questions about the same code, and each takes most of a millisecond.
@functools.lru_cache(maxsize=16)
def _instructions(code: CodeType) -> Tuple[dis.Instruction, ...]:
    return tuple(dis.get_instructions(code))


def iterates(function: Any) -> bool:
    """Whether this is the ``__iter__`` of a container."""
    return getattr(innermost(function), "__name__", "") == "__iter__"


def draws_layers(function: Any) -> bool:
    """Whether this forward names a LayerDrop rate and a scalar random draw: it decides itself which layers run."""
    if not draws(function):
        return False
    code = innermost(function).__code__
    if not any(_is_rate(name) or _RATE_OF_LIST in name for name in code.co_names):
        return False
    return bool(rate_paths(function))


def draws(function: Any) -> bool:
    """Whether a function names a random draw itself; one that it calls is not looked at."""
    inner = innermost(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return False
    home = getattr(inner, "__globals__", {})
    return any(name in _DRAWS or _is_draw(home.get(name)) for name in code.co_names)


def _is_draw(value: Any) -> bool:
    """Whether a global is a draw under any name, as after ``from random import random as draw``."""
    return type(value).__name__ in _METHODS and getattr(value, "__name__", "") in _DRAWS


def rename(site: Site, function: FunctionType, traits: Traits) -> CodeType:
    """The function's code with its random sources renamed to look-alikes, which are put into its globals."""
    code = function.__code__
    loaded = _globals_of(code)
    names = {
        name: _HIDDEN + name
        for name in _SOURCES
        if name in loaded and isinstance(function.__globals__.get(name), ModuleType) and _used(name, code)
    }
    own = [name for name in _GENERATORS if name in code.co_names and name not in loaded]
    _refuse_other_sources(function, [*names, *own])
    names.update({name: _HIDDEN + name for name in traits.checks if name in loaded and name in function.__globals__})
    _refuse_ambiguous(function, names)
    names.update({name: _HIDDEN + name for name in own})
    home = function.__globals__
    for name, hidden in names.items():
        if name not in own and hidden not in home:
            home[hidden] = _unless_shared(name, home[name]) if name in traits.checks else _look_alike(home[name])
            site.at_undo(functools.partial(home.pop, hidden, None))
    renamed = tuple(names.get(name, name) for name in code.co_names)
    return code.replace(co_names=renamed, co_consts=_complete_outputs(code, traits.skipped_output))


def add_hidden_generators(site: Site, owner: type, function: FunctionType) -> None:
    """Give a class the hidden names under which the copy of its forward finds a generator of the module's own."""
    for name in _GENERATORS:
        hidden = _HIDDEN + name
        if name in function.__code__.co_names and hidden not in vars(owner):
            setattr(owner, hidden, property(functools.partial(_generator_look_alike, name)))
            site.at_undo(functools.partial(delattr, owner, hidden))


def _generator_look_alike(name: str, module: Any) -> _LookAlike:
    generator = getattr(module, name)
    return _LookAlike(generator, {"random": _scalar_draw(generator.random)})


def _used(name: str, code: CodeType) -> bool:
    """Whether numpy is used for its generators; the name may also be an attribute (``x.numpy()``)."""
    return name not in ("np", "numpy") or "random" in code.co_names


def _globals_of(code: CodeType) -> FrozenSet[str]:
    return frozenset(i.argval for i in _instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _refuse_other_sources(function: FunctionType, sources: List[str]) -> None:
    """Raise unless each draw comes from a module or generator that a look-alike stands for: no other one is noticed."""
    drawn = _draws_by_source(function.__code__, function.__globals__)
    others = {way for source, way in drawn if source not in (*sources, "")}
    if others:
        raise PatchError(
            f"{function.__qualname__} draws by {', '.join(sorted(others))}; only draws of the modules torch, random and"
            " numpy, imported as such (import random), and of a generator of the module's own (self.rng) can be shared"
        )
    if not sources or not drawn:
        raise PatchError(f"{function.__qualname__} draws from a source that is not torch, random or numpy")


def _draws_by_source(code: CodeType, home: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """The draws of a function: the name by which each begins, or the generator of the module's own, and the whole.

    What fills a tensor has none (""): ``torch.empty(3).uniform_()``, and noise in a tensor of any origin.
    """
    found: List[Tuple[str, str]] = []
    chain: List[str] = []
    for instruction in _instructions(code):
        name, operation = instruction.argval, instruction.opname
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF"):
            chain = [name]
            if operation in ("LOAD_GLOBAL", "LOAD_NAME") and (name in _DRAWS or _is_draw(home.get(name))):
                found.append((name, name))
        elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(name)
            if name in _DRAWS:
                own = [each for each in chain[:-1] if each in _GENERATORS]
                source = own[-1] if own else chain[0]
                found.append(("" if name == "uniform_" else source, ".".join(chain)))
        elif operation != "EXTENDED_ARG":
            chain = []
    return found


def _refuse_ambiguous(function: FunctionType, names: Dict[str, str]) -> None:
    """A name and an attribute share one entry in the code: ``random.random`` is renamed as a whole.

    That is right behind a look-alike, which knows its hidden names; behind anything else it would be an error.
    """
    before = ""
    for instruction in _instructions(function.__code__):
        name = instruction.argval
        if name in names and instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and before not in names:
            raise PatchError(f"{function.__qualname__} uses {name} both as a module and as an attribute")
        before = name if isinstance(name, str) else ""


def _complete_outputs(code: CodeType, short: Tuple[None, ...]) -> Tuple[Any, ...]:
    """The constants, with the outputs of a skipped layer as long as those of a layer that ran."""
    if not short:
        return code.co_consts
    steps = _instructions(code)
    unpacked = any(one.argval == short and other.opname == "UNPACK_SEQUENCE" for one, other in zip(steps, steps[1:]))
    return tuple((None,) * 5 if value == short and not unpacked else value for value in code.co_consts)


# The checks (see Traits) that are skipped while the schedule decides, because ranks agree; a patch registers them.
SKIPPABLE_CHECKS: Registry[str] = Registry("each forward that skips layers")


def _unless_shared(name: str, check: Callable[..., bool]) -> Callable[..., bool]:
    """Skip a toolkit's check that runs every layer of a sharded model because ranks might disagree: here they agree.

    A recomputation in backward repeats the decisions of a step, and must run what the forward ran.
    """

    @functools.wraps(check)
    def must_run_all(*args: Any, **kwargs: Any) -> bool:
        call = draw.CURRENT.get()
        if call is not None and call.base is not None and name in SKIPPABLE_CHECKS:
            return False
        all_run = check(*args, **kwargs)
        if all_run and call is not None:
            call.whole = True
        return all_run

    return must_run_all


# A class attribute that is 0, in the place of every rate.
NO_RATE = _HIDDEN + "no_rate"


def without_rates(function: FunctionType) -> FunctionType:
    """A copy that reads 0 for every rate that it takes from ``self``."""
    rates = {path[0] for path in rate_paths(function) if len(path) == 1}
    names = tuple(NO_RATE if name in rates else name for name in function.__code__.co_names)
    return copy_with(function, function.__code__.replace(co_names=names))


def copy_with(function: FunctionType, code: CodeType) -> FunctionType:
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return copy


def rebuild(function: Any, inner: Any, replacement: Any) -> Any:
    """A copy of a chain of decorators around ``inner`` that ends in ``replacement``."""
    if function is inner:
        return replacement
    below = function.__wrapped__
    cells = getattr(function, "__closure__", None) or ()
    if not isinstance(function, FunctionType) or not any(cell.cell_contents is below for cell in cells):
        raise PatchError(f"the decorator around {inner.__qualname__} does not hold it in a closure")
    rebuilt = rebuild(below, inner, replacement)
    closure = tuple(CellType(rebuilt) if cell.cell_contents is below else cell for cell in cells)
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__dict__["__wrapped__"] = rebuilt
    return copy
