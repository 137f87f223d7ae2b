"""Leaves a model and the random generators as they were: gradients, buffers, attributes, modes."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ddpfix import devices
from ddpfix.models import internals

# Containers whose contents are restored; modules and parameters of a model are not replaced in its forward.
_CONTAINERS = (list, dict, set, OrderedDict)
_OWN = ("_modules", "_parameters")


@contextlib.contextmanager
def kept(model: Any) -> Iterator[None]:
    """Restore at the end what training forwards and backwards change in a model, and what they draw.

    Gradients, buffers (statistics), attributes of the modules, the training mode of each, and the states of the
    generators of torch, numpy and random, and of those that modules hold. Buffers are copies meanwhile.
    """
    gradients = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()]
    states = generators()
    records = [_Record(module) for module in model.modules()]
    buffers: Dict[int, Any] = {}
    try:
        for record in records:
            record.copy_buffers(buffers)
        for parameter, _, _ in gradients:
            parameter.grad = None
        yield
    finally:
        for record in records:
            record.restore()
        for parameter, gradient, trains in gradients:
            parameter.grad = gradient
            if parameter.requires_grad is not trains:
                parameter.requires_grad_(trains)
        for restore in states:
            restore()


class _Record:
    """The attributes of one module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._attributes = dict(vars(module))
        self._contents: List[Tuple[Any, Any]] = []
        self._states: List[Callable[[], object]] = []
        for name, value in self._attributes.items():
            if type(value) in _CONTAINERS and name not in _OWN and not name.endswith("_hooks"):
                self._contents.append((value, type(value)(value)))
            state = _state_of(value)
            if state is not None:
                self._states.append(state)

    def copy_buffers(self, copies: Dict[int, Any]) -> None:
        """Put copies in the place of the buffers, one for each, so that nobody sees the originals change."""
        held = internals.buffers_in(self._module)
        for name, buffer in held.items():
            if buffer is not None:
                if id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                held[name] = copies[id(buffer)]

    def restore(self) -> None:
        attributes = vars(self._module)
        for name in [name for name in attributes if name not in self._attributes]:
            del attributes[name]
        for name, value in self._attributes.items():
            if attributes.get(name, self) is not value:
                attributes[name] = value
        for container, content in self._contents:
            if _differ(container, content):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(content)
        for restore in self._states:
            restore()


def _differ(now: Any, then: Any) -> bool:
    """Return whether a container holds other objects than it did."""
    if len(now) != len(then):
        return True
    if isinstance(now, dict):
        return any(one != two or now[one] is not then[two] for one, two in zip(now, then))
    return any(one is not two for one, two in zip(now, then)) if isinstance(now, list) else bool(now != then)


def _state_of(value: Any) -> Any:
    """Return a function that restores a generator's state; None for what is no generator."""
    if isinstance(value, torch.Generator):
        kept = value.get_state()
        return lambda: value.set_state(kept)
    if isinstance(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.RandomState):
        numbers = value.get_state()
        return lambda: value.set_state(numbers)
    if numpy is not None and isinstance(value, numpy.Generator):
        bits = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", bits)
    return None


def generators() -> List[Callable[[], object]]:
    """Functions that restore the states that the global generators have now."""
    cpu, plain = torch.get_rng_state(), random.getstate()
    found: List[Callable[[], object]] = [lambda: torch.set_rng_state(cpu), lambda: random.setstate(plain)]
    found += devices.random_states()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numbers = numpy.get_state()
        found.append(lambda: numpy.set_state(numbers))
    return found
