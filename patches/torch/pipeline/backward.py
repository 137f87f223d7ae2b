"""The one wrapper of ``torch.autograd.backward``: DDP raises two of its errors in there, and leaves no graph after it.

It is put on when the first model is wrapped by DDP, and looks at the outermost backward only: reentrant checkpoints
call backward within one.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, List, Protocol, Set

import torch

from ddpfix import log
from ddpfix.models.recomputed import in_backward
from ddpfix.patching.site import Site

from ..internals import autograd


class Observer(Protocol):
    """What is told of backwards."""

    def backward_ended(self, roots: Any) -> None: ...

    def backward_failed(self, error: BaseException, roots: Any) -> None: ...


Observers = List["weakref.ref[Observer]"]
# The threads in which an outermost backward runs.
_RUNS: Set[int] = set()


class Backwards:
    """The cases that are told of backwards, in one activation; those of models that are no more go by themselves."""

    def __init__(self) -> None:
        self.known: Observers = []
        # Those whose reductions may be left unfinished.
        self.looking: Observers = []

    def look_at(self, site: Site, case: Observer, looks: bool) -> None:
        """Tell a case of backwards, until the site is undone or the case is no more.

        Args:
            site: of the wrapper.
            case: of a model; its ``backward_failed(error, roots)`` is called with what a backward has raised.
            looks: whether its ``backward_ended(roots)`` is called after each backward.
        """
        if not site.records:
            site.wrap_hot(torch.autograd, "backward", self._around)
            site.at_undo(self.known.clear)
            site.at_undo(self.looking.clear)
        for cases in (self.known, self.looking) if looks else (self.known,):
            cases.append(weakref.ref(case, cases.remove))

    def forget(self, case: Observer) -> None:
        """Do not tell this one any more."""
        for cases in (self.known, self.looking):
            cases[:] = [each for each in cases if each() is not case]

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        known, looking, runs = self.known, self.looking, _RUNS
        thread, tells = threading.get_ident, autograd.TELLS
        # Where the engine does not tell, all threads count as one: its own threads call backward within a checkpoint.
        is_nested: Callable[[], bool] = in_backward if tells else (lambda: bool(runs))

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not known or is_nested():
                return original(*args, **kwargs)
            here = 0 if tells else thread()
            if not tells:
                runs.add(here)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._failed(error, args[0] if args else kwargs.get("tensors"))
                raise
            finally:
                if not tells:
                    runs.discard(here)
            if looking:
                self._ended(args[0] if args else kwargs.get("tensors"))
            return result

        return backward

    def _ended(self, roots: Any) -> None:
        for reference in tuple(self.looking):
            case = reference()
            if case is not None:
                try:
                    case.backward_ended(roots)
                except Exception as problem:
                    self.forget(case)
                    log.debug(f"backwards are not looked at any more: {problem!r}")

    def _failed(self, error: BaseException, roots: Any) -> None:
        for reference in tuple(self.known):
            case = reference()
            try:
                if case is not None:
                    case.backward_failed(error, roots)
            except Exception as problem:
                log.debug(f"an error of a backward is left as it is: {problem!r}")
