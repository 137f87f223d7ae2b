"""Observes each call of a module, and reports it to the observed model that it belongs to."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.nn.modules import module as modules

from ddpfix import log
from ddpfix.models import internals
from ddpfix.probing.subject import Subject

# owner(module, around) -> the model that a module belongs to; None: to none that trains. ``around``: calls it is in.
Owner = Callable[[Any, List[Any]], Optional[Subject]]
# Called with a model under DDP, a module in it, and the frame of a training call that the wrapper is not around.
Past = Callable[[Subject, Any, FrameType], None]

_compiler: Any = getattr(torch, "compiler", None)
_compiling: Any = getattr(_compiler, "is_compiling", None)
# torch's own, which torch.compile follows: what it compiles is not looked at.
_is_compiling: Callable[[], bool] = _compiling if _compiling is not None else torch.jit.is_scripting


class ModuleCalls:
    """Observes calls of modules from ``start`` to ``stop``."""

    def __init__(self, owner: Owner, past: Optional[Past] = None) -> None:
        self._owner, self._past = owner, past
        self._threads = threading.local()
        self._handles: List[Any] = []
        self.failure: Optional[Exception] = None
        # A model that is changed during a forward is rare: each module is looked up once.
        self._subjects: Dict[Any, Subject] = {}

    def start(self) -> None:
        """Be called around each call of a module in this process."""
        self._handles.append(modules.register_module_forward_pre_hook(self._enter))
        self._handles.append(modules.register_module_forward_hook(self._leave))

    def stop(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        for subject in dict.fromkeys(self._subjects.values()):
            subject.end()
        self._subjects.clear()

    def _around(self) -> List[Any]:
        found: Optional[List[Any]] = getattr(self._threads, "around", None)
        if found is None:
            found = self._threads.around = []
            # Whether the last call was one of a forward that runs again.
            self._threads.again = False
        return found

    def optimizer_steps(self) -> None:
        """Forget calls that are not running here: one that has raised was never left.

        An optimizer mostly steps outside of all modules; in Lightning's manual optimization, within the wrapper.
        """
        around = self._around()
        if around:
            around[:] = _running(around, sys._getframe(1))

    def _enter(self, module: Any, inputs: Any) -> None:
        if _is_compiling():
            return
        try:
            self._entered(module, sys._getframe(1))
        except Exception as error:
            self._failed(error)

    def _entered(self, module: Any, frame: FrameType) -> None:
        again = internals.in_backward()
        around = self._around()
        if again or self._threads.again:
            # A checkpoint ends the forward that it runs again by an exception, as soon as it has what it needs.
            around[:] = _running(around, frame)
            self._threads.again = again
        subject = self._subject(module, around)
        first = subject is not None and not any(self._subjects.get(each) is subject for each in around)
        around.append(module)
        if subject is None:
            return
        if first and not again:
            self._first(subject, module, frame)
        subject.call(module, again, first)

    def _first(self, subject: Subject, module: Any, frame: FrameType) -> None:
        if not (torch.is_grad_enabled() and module.training):
            return
        subject.begin()
        if subject.wrapper is not None and module is not subject.wrapper and self._past is not None:
            self._past(subject, module, frame)

    def _subject(self, module: Any, around: List[Any]) -> Optional[Subject]:
        known = self._subjects.get(module)
        if known is None:
            known = self._owner(module, around)
            if known is not None:
                self._subjects.update(dict.fromkeys(known.modules, known))
                if known.wrapper is not None:
                    self._subjects[known.wrapper] = known
        return known

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        if _is_compiling():
            return
        try:
            self._left(module, output)
        except Exception as error:
            self._failed(error)

    def _left(self, module: Any, output: Any) -> None:
        around = self._around()
        if module not in around:
            return
        # Calls that have raised were not left.
        while around and around.pop() is not module:
            pass
        subject = self._subjects.get(module)
        if subject is None or any(self._subjects.get(each) is subject for each in around):
            return
        if torch.is_grad_enabled() and module.training and not internals.in_backward():
            subject.returned(output)

    def _failed(self, error: Exception) -> None:
        self.failure = error
        log.debug(f"the probe ends: {error!r}")
        for handle in self._handles:
            handle.remove()


def _running(around: List[Any], frame: Optional[FrameType]) -> List[Any]:
    """Return those of some modules whose call is running in this frame or above it."""
    found = set()
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":
            found.add(id(frame.f_locals.get("self")))
        frame = frame.f_back
    return [module for module in around if id(module) in found]
