"""What the cures of fastNLP share."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from ddpfix.registry import PatchError

FLAG = "find_unused_parameters"
# The line that hands a setting to DDP in 1.0.x, and the one of 0.7.0.
SPELLING = "torch_kwargs={'ddp_kwargs': {%s}}"


def needed(owner: Any, method: str, *expected: str) -> None:
    """Refuse a method of a class itself that no longer looks up the names that a cure builds on.

    Raises:
        PatchError: the method is not there, is no plain function, or lacks one of the names.
    """
    function = inspect.unwrap(vars(owner)[method]) if method in vars(owner) else None
    if not isinstance(function, FunctionType):
        raise PatchError(f"{owner.__qualname__}.{method} is not there, or not a plain function")
    code = function.__code__
    known = {*code.co_names, *(value for value in code.co_consts if isinstance(value, str))}
    missing = [word for word in expected if word not in known]
    if missing:
        raise PatchError(f"{owner.__qualname__}.{method} no longer uses {', '.join(missing)}")
