"""The layer that is put around a function which is called once a run: it looks like the function."""

from __future__ import annotations

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

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            if kind is staticmethod or not isinstance(owner, type):
                return wrapper(original if kind is None else original.__get__(None, owner), None, args, kwargs)
            if kind is None and not (args and isinstance(args[0], owner)):
                # The error is the function's own.
                return original(*args, **kwargs)
            bound = (args[0], type(args[0])) if kind is None else (None, args[0])
            return wrapper(original.__get__(*bound), args[0], args[1:], kwargs)
        except BaseException as error:
            tracebacks.hide(error)
            raise

    attribution.uncounted(wrapper)
    shown = attribution.looks_like(original if kind is None else original.__func__, called)
    return shown if kind is None else kind(shown)
