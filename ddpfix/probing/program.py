"""A program under observation: its models, and its optimizers' steps, until there were enough of them."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, Dict, List

import torch
from torch.optim import optimizer as optimizers

from ddpfix import log
from ddpfix.probing.module_calls import ModuleCalls, Past
from ddpfix.probing.owners import Owners
from ddpfix.probing.phases import Phases
from ddpfix.probing.result import Result
from ddpfix.probing.subject import Subject

# An optimizer that steps so much more rarely than another one is not waited for.
_PATIENCE = 10


class Program:
    """Observes from ``start`` to ``stop``; ``done`` is called once, within the hook of the last of so many steps."""

    def __init__(self, steps: int, past: Past, done: Callable[[], None]) -> None:
        self._wanted, self._done = steps, done
        self.phases, self.owners = Phases(), Owners()
        self.calls = ModuleCalls(self._owner, past, self.phases)
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._handles: List[Any] = []
        # The steps of the optimizer that has made the most of them; it may be no more.
        self.steps = 0

    def start(self) -> None:
        """Be called around calls of modules and steps of optimizers."""
        self.calls.start()
        self._handles.append(optimizers.register_optimizer_step_pre_hook(self._begins))
        self._handles.append(optimizers.register_optimizer_step_post_hook(self._stepped))

    def stop(self) -> None:
        self.calls.stop()
        for subject in self.owners.subjects:
            subject.end()
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

    def _owner(self, module: Any, around: List[Any]) -> Any:
        found = self.owners.of(module, around)
        while self.owners.replaced:
            self.calls.forget(self.owners.replaced.pop())
        return found

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            self.phases.enter("optimizer")
        except Exception as error:
            log.debug(f"the probe does not see an optimizer's step: {error!r}")

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
        self.phases.enter("")
        self.calls.optimizer_steps()
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.steps = max(self.steps, self._counts[optimizer])
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        subjects = [each for each in self.owners.subjects if _holds(each, trained)]
        # An optimizer may hold copies of another precision.
        for subject in subjects or self.owners.subjects:
            if subject.is_open:
                subject.close()
                subject.stepped()

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


def _holds(subject: Subject, trained: Any) -> bool:
    return any(id(parameter) in trained for _, parameter in subject.parameters)


def _under(subject: Subject) -> str:
    """Return how DDP was built around a model."""
    wrapper = subject.wrapper
    if wrapper is None:
        return "not under DDP"
    static = ", static_graph=True" if getattr(wrapper, "static_graph", False) else ""
    return f"under DDP with find_unused_parameters={wrapper.find_unused_parameters}{static}"
