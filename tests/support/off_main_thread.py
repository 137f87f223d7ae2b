"""Autograd's engine in a thread of its own, as it runs on an accelerator: on a CPU it runs in the thread that calls.

What hooks and callbacks keep in variables of a context or of a thread, or expect of the main thread, is found out so.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, List, Tuple

import torch

# With this variable, ranks of the tests that can do so begin with :func:`put` (pytest --threads).
VARIABLE = "TEST_BACKWARD_THREAD"
_NAME = "a device of autograd"


def put_if_asked(asked: bool) -> None:
    """Do so where a scenario asks for it, or :data:`VARIABLE` for all."""
    if asked or os.environ.get(VARIABLE) == "1":
        put()


def put() -> None:
    """Have the engine run each outermost backward of this process in another thread; the one that calls it waits."""
    for holder, name in places():
        _put(holder, name)


def places() -> List[Tuple[Any, str]]:
    """Where torch calls the engine: the owner of the function, and its name."""
    if hasattr(torch.autograd, "_engine_run_backward"):
        return [(torch.autograd, "_engine_run_backward")]
    # Before torch 2.2 it is a method of an object in C++.
    engine: Any = torch.autograd.Variable
    stock = engine._execution_engine
    names = ("run_backward", "queue_callback", "is_checkpoint_valid")
    engine._execution_engine = SimpleNamespace(**{each: getattr(stock, each) for each in names})
    return [(engine._execution_engine, "run_backward")]


def _in_function_transform() -> bool:
    functions: Any = getattr(torch._C, "_functorch", None)
    asked = getattr(functions, "peek_interpreter_stack", None)
    return asked is not None and asked() is not None


def _put(holder: Any, name: str) -> None:
    stock = getattr(holder, name)

    def run_backward(*args: Any, **options: Any) -> Any:
        # The engine takes the state of torch.func with it to its own threads, which this one cannot.
        if threading.current_thread().name.startswith(_NAME) or _in_function_transform():
            return stock(*args, **options)
        with ThreadPoolExecutor(1, _NAME) as engine:
            return engine.submit(stock, *args, **options).result()

    setattr(holder, name, run_backward)
