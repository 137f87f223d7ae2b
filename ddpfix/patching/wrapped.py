"""The layer that is put around a function which is called once a run: it looks like the function."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Callable

from ddpfix.patching import attribution, tracebacks


def layer(original: Any, wrapper: Callable[..., Any], owner: Any) -> Any:
    """Return what stands in the place of a function, a method, a class method or a static method.

    Args:
        original: the raw object from the owner's ``__dict__``.
        wrapper: see :meth:`ddpfix.patching.site.Site.wrap`.
        owner: the module or class that has it.
    """
    kind: Any = next((each for each in (classmethod, staticmethod) if isinstance(original, each)), None)
    function = original if kind is None else original.__func__
    takes_first = isinstance(owner, type) and kind is not staticmethod
    # Names of its own: it gets the globals of the function, in which torch.jit.script looks up those of the source.
    hide, is_a, type_of, anything = tracebacks.hide, isinstance, type, BaseException

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            if not takes_first:
                return wrapper(original if kind is None else original.__get__(None, owner), None, args, kwargs)
            if kind is None and not (args and is_a(args[0], owner)):
                # The error is the function's own.
                return original(*args, **kwargs)
            bound = (args[0], type_of(args[0])) if kind is None else (None, args[0])
            return wrapper(original.__get__(*bound), args[0], args[1:], kwargs)
        except anything as error:
            hide(error)
            raise

    attribution.uncounted(wrapper)
    if type(function) is FunctionType:
        called = FunctionType(called.__code__, function.__globals__, None, None, called.__closure__)
    shown = attribution.looks_like(function, called)
    if type(function) is FunctionType:
        # Who asks for them finds them; a call has all its arguments as they come.
        shown.__defaults__, shown.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return shown if kind is None else kind(shown)
