"""A program under observation: its models, and its optimizers' steps, until there were enough of them."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from ddpfix import log
from ddpfix.probing.module_calls import ModuleCalls, Past
from ddpfix.probing.result import Result
from ddpfix.probing.subject import Subject

# An optimizer that steps so much more rarely than another one is not waited for.
_PATIENCE = 10
_CONTAINERS = (torch.nn.ModuleDict, torch.nn.ModuleList)


class Program:
    """Observes from ``start`` to ``stop``; ``done`` is called once, within the hook of the last of so many steps."""

    def __init__(self, steps: int, past: Past, done: Callable[[], None]) -> None:
        self._wanted, self._done = steps, done
        self.owners = Owners()
        self.calls = ModuleCalls(self.owners.of, past)
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._handles: List[Any] = []
        # The steps of the optimizer that has made the most of them; it may be no more.
        self.steps = 0

    def start(self) -> None:
        """Be called around calls of modules and steps of optimizers."""
        self.calls.start()
        self._handles.append(optimizers.register_optimizer_step_post_hook(self._stepped))

    def stop(self) -> None:
        self.calls.stop()
        while self._handles:
            self._handles.pop().remove()

    def results(self) -> List[Result]:
        """Return the observations of each model that an optimizer trains, with the advice."""
        found = []
        for subject in self.owners.subjects:
            if not subject.passes:
                continue
            found.append(subject.result())
            found[-1].under = _under(subject)
        return found

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            self._step(optimizer)
        except Exception as error:
            log.debug(f"the probe ends: {error!r}")
            self.calls.failure = error
            self.stop()
            return
        if self._is_enough():
            self._done()

    def _step(self, optimizer: Any) -> None:
        self.calls.optimizer_steps()
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.steps = max(self.steps, self._counts[optimizer])
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        every = self.owners.subjects
        subjects = [each for each in every if any(id(parameter) in trained for _, parameter in each.parameters)]
        # An optimizer may hold copies of another precision.
        for subject in subjects or every:
            if subject.is_open:
                subject.close()
                subject.steps += 1

    def _is_enough(self) -> bool:
        """Return whether all optimizers have stepped often enough; one that has not begun has one step more."""
        most = self.steps
        if most < self._wanted:
            return False
        if any(count < self._wanted for count in self._counts.values()):
            return most >= _PATIENCE * self._wanted
        return most > self._wanted or not self._waiting()

    def _waiting(self) -> bool:
        """Return whether there is an optimizer that has not stepped, and that trains what is observed."""
        known: Dict[int, Any] = {id(p): p for each in self.owners.subjects for _, p in each.parameters}
        alive = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]
        idle = [each for each in alive if each not in self._counts and "param_groups" in vars(each)]
        return any(id(p) in known for each in idle for group in each.param_groups for p in group["params"])


def _under(subject: Subject) -> str:
    """Return how DDP was built around a model."""
    wrapper = subject.wrapper
    if wrapper is None:
        return "not under DDP"
    static = ", static_graph=True" if getattr(wrapper, "static_graph", False) else ""
    return f"under DDP with find_unused_parameters={wrapper.find_unused_parameters}{static}"


class Owners:
    """Which model a module belongs to, in a program that is only observed.

    A model is what DDP wraps; without DDP, the outermost module that holds the one that is called. Plain containers of
    several models are opened.
    """

    def __init__(self) -> None:
        self.subjects: List[Subject] = []

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
        for each in [each for each in self.subjects if each.model in subject.modules]:
            each.end()
            self.subjects.remove(each)
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
