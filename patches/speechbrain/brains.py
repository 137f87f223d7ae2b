"""What the cures of SpeechBrain's training loop share."""

from __future__ import annotations

import contextlib
import inspect
from datetime import timedelta
from types import FunctionType
from typing import Any, Iterator, List, Sequence

import torch
from torch import distributed

from ddpfix import ahead
from ddpfix.registry import PatchError

# What SpeechBrain itself gives its process group from 0.5.16 on: the slowest rank may be at a long validation.
_TIMEOUT = timedelta(hours=2)


def together(brain: Any) -> bool:
    """Whether this Brain trains on several ranks under DDP."""
    if not getattr(brain, "distributed_launch", False) or not distributed.is_available():
        return False
    return bool(distributed.is_initialized() and distributed.get_world_size() > 1)


def gathered(brain: Any, numbers: Sequence[int]) -> List[List[int]]:
    """Every rank's numbers, in the order of ranks: one small collective, in which every rank has to take part."""
    table = torch.zeros(distributed.get_world_size(), len(numbers), dtype=torch.int64)
    table[distributed.get_rank()] = torch.tensor(numbers)
    if distributed.get_backend() != "gloo":
        table = table.to(brain.device)
    distributed.all_reduce(table)
    found: List[List[int]] = table.tolist()
    return found


def cpu_group() -> Any:
    """A gloo group of all ranks, or None (:func:`ddpfix.ahead.cpu_group`); every rank has to come here."""
    return ahead.cpu_group(_TIMEOUT)


def code_names(owner: Any, name: str) -> Sequence[str]:
    """The names that a method looks up, whatever has been wrapped around it."""
    function = inspect.unwrap(vars(owner)[name]) if name in vars(owner) else None
    if not isinstance(function, FunctionType):
        raise PatchError(f"{owner.__qualname__}.{name} is not there, or not a plain function")
    return function.__code__.co_names


def needs_names(owner: Any, name: str, *expected: str) -> None:
    """Refuse a method that no longer looks up what a cure builds on."""
    missing = [word for word in expected if word not in code_names(owner, name)]
    if missing:
        raise PatchError(f"{owner.__qualname__}.{name} no longer uses {', '.join(missing)}")


@contextlib.contextmanager
def shadowed(instance: Any, name: str, value: Any) -> Iterator[None]:
    """While this lasts, ``instance`` has an attribute of its own in front of what its class has."""
    had, was = name in vars(instance), vars(instance).get(name)
    setattr(instance, name, value)
    try:
        yield
    finally:
        if had:
            setattr(instance, name, was)
        else:
            delattr(instance, name)
