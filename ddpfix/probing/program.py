"""A program under observation: its models, and its optimizers' steps, until there were enough of them."""

from __future__ import annotations

import gc
import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from ddpfix import log
from ddpfix.models import internals
from ddpfix.probing.result import Result
from ddpfix.probing.subject import Subject

# Called with a model under DDP, a module in it, and the frame of a training call that the wrapper is not around.
Past = Callable[[Subject, Any, FrameType], None]
# An optimizer that steps so much more rarely than another one is not waited for.
_PATIENCE = 10
_CONTAINERS = (torch.nn.ModuleDict, torch.nn.ModuleList)
_compiler: Any = getattr(torch, "compiler", None)
_compiling: Any = getattr(_compiler, "is_compiling", None)
# torch's own, which torch.compile follows: what it compiles is not looked at.
_is_compiling: Callable[[], bool] = _compiling if _compiling is not None else torch.jit.is_scripting


class Program:
    """Observes from ``start`` to ``stop``; ``done`` is called once, within the hook of the last of so many steps.

    A model is what DDP wraps; without DDP, the outermost module that holds the one that is called. Plain containers of
    several models are opened.
    """

    def __init__(self, steps: int, past: Past, done: Callable[[], None]) -> None:
        self._wanted, self._past, self._done = steps, past, done
        self._subjects: List[Subject] = []
        # A model that is changed during a forward is rare: each module is looked up once.
        self._of: Dict[Any, Subject] = {}
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._handles: List[Any] = []
        self.failure: Optional[Exception] = None
        # The steps of the optimizer that has made the most of them; it may be no more.
        self.steps = 0

    def observe(self, model: Any) -> Subject:
        """Take a module for a model, whatever holds it."""
        subject = self._add(Subject(model))
        self._of.update(dict.fromkeys(subject.modules, subject))
        return subject

    def start(self) -> None:
        """Be called around each call of a module in this process, and after each step of an optimizer."""
        self._handles += [
            modules.register_module_forward_pre_hook(self._guarded(self._enter)),
            modules.register_module_forward_hook(self._guarded(self._leave)),
            optimizers.register_optimizer_step_post_hook(self._guarded(self._step)),
        ]

    def stop(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        for subject in self._subjects:
            subject.end()

    def results(self) -> List[Result]:
        """Return the observations of each model that an optimizer trains, with the advice."""
        return [subject.result() for subject in self._subjects if subject.passes]

    def _guarded(self, look: Callable[..., None]) -> Callable[..., None]:
        def hook(*given: Any) -> None:
            if _is_compiling():
                return
            try:
                look(*given)
            except Exception as error:
                log.debug(f"the probe ends: {error!r}")
                self.failure = error
                self.stop()

        return hook

    # Calls of modules.

    def _enter(self, module: Any, inputs: Any) -> None:
        again, around = internals.in_backward(), _around(sys._getframe())
        subject = self._of.get(module)
        if subject is None:
            subject = self._model_of(module, around)
            if subject is None:
                return
            above = [] if subject.wrapper is None else [subject.wrapper]
            self._of.update(dict.fromkeys([*subject.modules, *above], subject))
        first = not any(self._of.get(each) is subject for each in around)
        if first and not again and torch.is_grad_enabled() and module.training:
            subject.begin()
            if subject.wrapper is not None and module is not subject.wrapper:
                # From the frame of the call on; this hook and its guard are in front.
                self._past(subject, module, sys._getframe(2))
        subject.call(module, again, first)

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        subject = self._of.get(module)
        if subject is None or internals.in_backward() or not (torch.is_grad_enabled() and module.training):
            return
        if not any(self._of.get(each) is subject for each in _around(sys._getframe())):
            subject.returned(output)

    def _model_of(self, module: Any, around: List[Any]) -> Optional[Subject]:
        """Return the model of a module called in training, with gradients, within the calls ``around``; else None."""
        if not (torch.is_grad_enabled() and module.training and _trains(module)):
            return None
        if isinstance(module, DistributedDataParallel):
            return self._add(Subject(module.module, module))
        if any(_trains(each) for each in around):
            # Held by a model whose tree it is not in.
            return None
        # ``type`` and not ``isinstance``, which proxies answer for others.
        alive = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module) and "_modules" in vars(m)]
        for wrapper in alive:
            if isinstance(wrapper, DistributedDataParallel) and _holds(wrapper, module):
                known = next((each for each in self._subjects if each.wrapper is wrapper), None)
                return known or self._add(Subject(wrapper.module, wrapper))
        # Of several outermost modules, the smallest.
        inside = {id(child) for each in alive for child in each.children()}
        tops = [_opened(each, module) for each in alive if id(each) not in inside and _holds(each, module)]
        return self._add(Subject(min(tops, key=lambda each: sum(1 for _ in each.modules()), default=module)))

    def _add(self, subject: Subject) -> Subject:
        for each in [each for each in self._subjects if each.model in subject.modules]:
            each.end()
            self._subjects.remove(each)
        self._subjects.append(subject)
        return subject

    # Steps of optimizers.

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.steps = max(self.steps, self._counts[optimizer])
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        own = [each for each in self._subjects if any(id(parameter) in trained for _, parameter in each.parameters)]
        # An optimizer may hold copies of another precision.
        for subject in own or self._subjects:
            if subject.is_open:
                subject.close()
                subject.steps += 1
        if self._is_enough():
            self._done()

    def _is_enough(self) -> bool:
        """Return whether all optimizers have stepped often enough; one that has not begun has one step more."""
        if self.steps < self._wanted:
            return False
        if any(count < self._wanted for count in self._counts.values()):
            return self.steps >= _PATIENCE * self._wanted
        return self.steps > self._wanted or not self._waiting()

    def _waiting(self) -> bool:
        """Return whether there is an optimizer that has not stepped, and that trains what is observed."""
        known = {id(parameter) for each in self._subjects for _, parameter in each.parameters}
        alive = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]
        idle = [each for each in alive if each not in self._counts and "param_groups" in vars(each)]
        return any(id(p) in known for each in idle for group in each.param_groups for p in group["params"])


def _around(frame: Optional[FrameType]) -> List[Any]:
    """Return the modules whose calls are running around the one of this hook, the innermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":
            found.append(frame.f_locals.get("self"))
        frame = frame.f_back
    return found[1:]


def _trains(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _holds(outer: Any, module: Any) -> bool:
    return any(each is module for each in outer.modules())


def _opened(outer: Any, module: Any) -> Any:
    while type(outer) in _CONTAINERS and outer is not module:
        outer = next(child for child in outer.children() if _holds(child, module))
    return outer
