"""Calls whose warnings point to the program's line, as in plain torch.

``warnings.warn(stacklevel=2)`` names the line of the caller, which is ddpfix where it has wrapped the function.
So the function is called from a frame that has the file, the line and the globals of the caller outside of ddpfix.
"""

from __future__ import annotations

import sys
from types import FrameType, FunctionType
from typing import Any, Callable

from ddpfix.user_code import OWN


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as the nearest caller outside of ddpfix would."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    if frame is None:
        return function(*args, **kwargs)
    place = {"co_filename": frame.f_code.co_filename, "co_firstlineno": frame.f_lineno, "co_name": frame.f_code.co_name}
    return FunctionType(_CODE.replace(**place), frame.f_globals)(function, args, kwargs)


# In one line, so that its only line is the first one.
_CODE = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


def is_between(frame: FrameType) -> bool:
    """Return whether this is the frame of such a call, which bears the caller's file and name."""
    code = frame.f_code
    return code.co_varnames == _CODE.co_varnames and code.co_code == _CODE.co_code
