"""Functions of ddpfix that warnings do not count: those that stand between the program and torch.

``warnings.warn(stacklevel=n)`` names the frame of the n-th caller, and counts none of Python's own import system, which
it knows by two words in the file's name. So what torch or a model warns of names the line that it names without
ddpfix, through any number of our wrappers, and costs nothing in a call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from types import CodeType, FunctionType
from typing import Any, Callable, TypeVar

from ddpfix.user_code import OWN

T = TypeVar("T")

# The two words, as a folder that ddpfix does not have.
_WORDS = "importlib_bootstrap/"


def uncounted(function: T) -> T:
    """Have warnings count no frame of a function of ddpfix, a method of it or a partial one; return it."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = getattr(inner, "__func__", inner)
    if isinstance(inner, FunctionType):
        inner.__code__ = _named(inner.__code__)
    return function


def _named(code: CodeType) -> CodeType:
    home = next((each for each in OWN if code.co_filename.startswith(each)), None)
    if home is None or is_named(code):
        return code
    return code.replace(co_filename=f"{home}{_WORDS}{code.co_filename[len(home) :]}")


def is_named(code: CodeType) -> bool:
    """Return whether this is the code of such a function."""
    return _WORDS in code.co_filename and code.co_filename.startswith(OWN)


def looks_like(original: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
    """Return the closure with the name, the signature and the source of what it calls.

    A signature is asked for with or without what a function wraps; a second wrapper shows its own in the latter case,
    and has to be found by the former.

    Args:
        original: the function.
        closure: calls it.
    """
    shown = uncounted(functools.wraps(original)(closure))
    if type(original) is FunctionType and not hasattr(original, "__wrapped__"):
        with contextlib.suppress(TypeError, ValueError):
            shown.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return shown
