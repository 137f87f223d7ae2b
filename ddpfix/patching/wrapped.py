"""The layer that is put around a function which is called once a run, by wrapt: it looks like the function."""

from __future__ import annotations

import functools
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any, Callable, Optional

import wrapt

from ddpfix.patching import attribution, tracebacks


class _BoundLayer(wrapt.BoundFunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    def __reduce_ex__(self, protocol: Any) -> Any:
        return _by_name(self) if self._self_instance is None else (getattr, (self._self_instance, self.__name__))


class Layer(wrapt.FunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    """wrapt's wrapper refuses to be pickled and copied; a function goes by its name and is its own copy."""

    __bound_function_wrapper__ = _BoundLayer

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # A class hands out a plain function as it is, the same one each time: ``Class.method is Class.method``.
        if instance is None and isinstance(self.__wrapped__, FunctionType):
            return self
        return super().__get__(instance, owner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _by_name(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def _by_name(function: Any) -> Any:
    """Return how a patched function is pickled: by its name, and read without ddpfix as well.

    Only what a module itself holds goes by its name as a plain function does: what a class hands out is another object
    each time.
    """
    *above, name = function.__qualname__.split(".")
    if not above:
        return name
    return getattr, (functools.reduce(getattr, above, import_module(function.__module__)), name)


def _bound(wrapped: Any, instance: Any) -> Any:
    """Return a bound method, also where it was called as ``Class.method(instance)``.

    For such a call wrapt hands out a partial object, whose signature, in its older releases, still has ``self``.
    """
    if instance is not None and issubclass(type(wrapped), wrapt.PartialCallableObjectProxy):
        return MethodType(wrapped.__wrapped__, instance)
    return wrapped


def called_by(wrapper: Callable[..., Any], owner: Optional[type]) -> Callable[..., Any]:
    """Return the function that wrapt calls for a layer of ddpfix.

    Args:
        wrapper: see :meth:`ddpfix.patching.site.Site.wrap`.
        owner: the class of which it stands in the place of a plain function; None for anything else.
    """

    @functools.wraps(wrapper)
    def called(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        try:
            if owner is not None:
                if not isinstance(args[0] if instance is None and args else instance, owner):
                    # The error is the function's own.
                    return wrapped(*args, **kwargs)
                if instance is None:
                    # Called as ``Class.method(instance)``.
                    instance, args = args[0], args[1:]
                    wrapped = wrapped.__get__(instance, type(instance))
            return wrapper(_bound(wrapped, instance), instance, args, kwargs)
        except BaseException as error:
            tracebacks.hide(error)
            raise

    attribution.uncounted(wrapper)
    return attribution.uncounted(called)
