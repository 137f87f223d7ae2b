"""Keeps torch.compile away from the choice of layers, and lets it compile the layers themselves."""

from __future__ import annotations

from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, Optional


def skip_frames(function: Any, and_all_below: bool = False) -> None:
    """Have torch.compile run this function as plain Python; it compiles what that calls unless ``and_all_below``.

    The decisions change with every step: a graph that had them inside would be compiled anew for each pattern.
    """
    _skip_code(function.__code__, and_all_below)
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "ddpfix: the layers to skip are chosen anew in every step"


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps torch.compile out of what it calls: up to torch 2.6, marking code cannot do that."""
    frames = _frames()
    if not hasattr(frames, "skip_code"):
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        before = frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            frames.set_eval_frame(before)

    skip_frames(run)
    return run


def _frames() -> Any:
    """Return torch's frame evaluation, without importing torch.compile (seconds); None where it has none."""
    from torch import _C

    return getattr(getattr(_C, "_dynamo", None), "eval_frame", None)


def _skip_code(code: CodeType, and_all_below: bool) -> None:
    """Mark a code object for torch's frame evaluation."""
    frames = _frames()
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        below = actions.SKIP if and_all_below else actions.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, below))


def skip_module(module: ModuleType) -> None:
    """Have torch.compile leave the functions of one of our modules alone, and what they call."""
    for value in list(vars(module).values()):
        for held in vars(value).values() if isinstance(value, type) else (value,):
            function = _function(held)
            if function is not None and function.__module__ == module.__name__:
                _skip_code(function.__code__, and_all_below=True)


def _function(held: Any) -> Optional[FunctionType]:
    """Return the function in a value of a class or module: the value itself, or the function in a descriptor."""
    found = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
    return found if isinstance(found, FunctionType) else None
