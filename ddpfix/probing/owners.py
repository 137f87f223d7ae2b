"""Which model a module belongs to, in a program that is only observed.

A model is what DDP wraps; without DDP, the outermost module that holds the one that is called. Plain containers of
several models are opened.
"""

from __future__ import annotations

import gc
from typing import Any, List, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpfix.probing.subject import Subject

_CONTAINERS = (torch.nn.ModuleDict, torch.nn.ModuleList)


class Owners:
    """A program's models by their first training forward; who holds modules of a replaced one has to ask again."""

    def __init__(self) -> None:
        self.subjects: List[Subject] = []
        self.replaced: List[Subject] = []

    def of(self, module: Any, around: List[Any]) -> Optional[Subject]:
        """Return the model of a module called in training, with gradients, within the calls ``around``; else None."""
        if not (torch.is_grad_enabled() and module.training and _trains(module)):
            return None
        if isinstance(module, DistributedDataParallel):
            return self._add(Subject(module.module, module))
        if any(_trains(each) for each in around):
            # Held by a model whose tree it is not in.
            return None
        found = _alive()
        for wrapper in found:
            if isinstance(wrapper, DistributedDataParallel) and _holds(wrapper, module):
                return self._known(wrapper) or self._add(Subject(wrapper.module, wrapper))
        return self._add(Subject(_top(found, module)))

    def _known(self, wrapper: Any) -> Optional[Subject]:
        return next((each for each in self.subjects if each.wrapper is wrapper), None)

    def _add(self, subject: Subject) -> Subject:
        inside = [each for each in self.subjects if each.model in subject.modules]
        for each in inside:
            each.end()
            self.subjects.remove(each)
        self.replaced.extend(inside)
        self.subjects.append(subject)
        return subject


def _trains(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _alive() -> List[Any]:
    """Return all modules of this process; ``type`` and not ``isinstance``, which proxies answer for others."""
    return [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module) and "_modules" in vars(each)]


def _holds(outer: Any, module: Any) -> bool:
    return any(each is module for each in outer.modules())


def _top(found: List[Any], module: Any) -> Any:
    """Return the outermost module that holds one; of several, the smallest."""
    inside = {id(child) for each in found for child in each.children()}
    tops = [_opened(each, module) for each in found if id(each) not in inside and _holds(each, module)]
    return min(tops, key=lambda each: sum(1 for _ in each.modules()), default=module)


def _opened(outer: Any, module: Any) -> Any:
    while type(outer) in _CONTAINERS and outer is not module:
        outer = next(child for child in outer.children() if _holds(child, module))
    return outer
