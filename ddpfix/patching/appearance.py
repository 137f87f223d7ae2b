"""What takes a function's place looks like it: name, signature and source are those of the function."""

from __future__ import annotations

import contextlib
import functools
import inspect
from types import FunctionType
from typing import Any, Callable

from ddpfix.patching import attribution


def looks_like(original: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
    """Return the closure with the name, the signature and the source of what it calls.

    A signature is asked for with or without what a function wraps; a second wrapper shows its own in the latter case,
    and has to be found by the former.

    Args:
        original: the function.
        closure: calls it.
    """
    shown = attribution.uncounted(functools.wraps(original)(closure))
    if type(original) is FunctionType and not hasattr(original, "__wrapped__"):
        with contextlib.suppress(TypeError, ValueError):
            shown.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return shown
