"""The one wrapper of ``torch.autograd.backward``: DDP raises two of its errors in there, and leaves no graph after it.

It is put on when the first model is wrapped by DDP, and sees the outermost backward only: reentrant checkpoints call
backward within one.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Dict, List, Set, Tuple

import torch

from ddpfix import log
from ddpfix.models.internals import TASK
from ddpfix.patching import tracebacks
from ddpfix.patching.site import Site

from ..internals import autograd
from .order import BACKWARD, Shared

# What a backward may be called for that can be read twice.
_ROOTS = (torch.Tensor, tuple, list)


def _once(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of a backward with a tuple of its roots: torch makes one, and an iterator yields once."""
    roots = args[0] if args else kwargs.get("tensors")
    try:
        found = tuple(roots)  # type: ignore[arg-type]
    except TypeError:
        # torch's own error is the right one.
        return args, kwargs
    return ((found, *args[1:]), kwargs) if args else (args, {**kwargs, "tensors": found})


class Backwards:
    """The observers of backwards in one activation; those of destroyed models leave by themselves."""

    def __init__(self) -> None:
        self.known: List[weakref.ref[Any]] = []
        # Those whose reductions may be left unfinished.
        self.looking: List[weakref.ref[Any]] = []
        # One at most: where there are several models, none is checked here.
        self._checks: List[Any] = []
        # Models whose ranks exchange something when the outermost backward has ended: all reductions of a backward
        # have ended by then, so that ranks exchange in one order.
        self._unsettled: List[Any] = []
        # How many outermost ones have begun in this process.
        self.count = 0
        self._shared: Shared[None] = Shared("torch.backward", BACKWARD)
        self._followed: Set[str] = set()

    def follow(self, site: Site, place: str) -> None:
        """Wrap ``torch.autograd.backward`` until the patch is undone, which may ask for it with each of its models."""
        if place not in self._followed:
            self._shared.join(site, place, None, self._put_on)
            self._followed.add(place)
            site.at_undo(lambda: self._followed.discard(place))

    def _put_on(self, site: Site) -> None:
        site.wrap_hot(torch.autograd, "backward", self._around)
        site.at_undo(self._forget_all)

    def _forget_all(self) -> None:
        for cases in (self.known, self.looking, self._checks, self._unsettled):
            cases.clear()

    def look_at(self, case: Any, looks: bool) -> None:
        """Call a case at backwards, until the wrapper is undone or the case was destroyed.

        Args:
            case: of a model; its ``backward_failed(error, roots)`` is called with what a backward has raised.
            looks: whether its ``backward_ended(roots)`` is called after each backward.
        """
        for cases in (self.known, self.looking) if looks else (self.known,):
            cases.append(weakref.ref(case, cases.remove))

    def forget(self, case: Any) -> None:
        """Do not tell this one any more."""
        for cases in (self.known, self.looking):
            for reference in tuple(cases):
                if reference() is case:
                    cases.remove(reference)

    def settle_after(self, exchange: Any) -> None:
        """Call ``exchange.settle()`` if it is due when the outermost backward has ended that runs now."""
        self._unsettled.append(exchange)

    def _settle(self) -> None:
        here = threading.get_ident()
        # Of a copy: another thread takes its models out when its backward ends, and one would be passed over.
        due = [each for each in tuple(self._unsettled) if each.model.thread == here]
        for each in sorted(due, key=lambda each: each.model.number):
            self._unsettled.remove(each)
            if each.is_due:
                each.settle()

    def check(self, check: Any) -> None:
        """Call ``backward_begins()`` before each backward, and ``backward_ended(what it returned)`` after it."""
        self._checks[:] = [check]

    def checks(self, check: Any) -> bool:
        """Return whether this is called."""
        return self._checks == [check]

    def check_no_more(self, check: Any) -> None:
        """Do not call this around backwards any more."""
        if self.checks(check):
            self._checks.clear()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        checks, looking, unsettled = self._checks, self.looking, self._unsettled
        runs, thread = autograd.ENGINE.threads, threading.get_ident
        # Before torch 2.1 all threads count as one: the engine's own call backward in a checkpoint.
        task = TASK or (lambda: 0 if runs else -1)

        def backward(*args: Any, **kwargs: Any) -> Any:
            if task() >= 0:
                return original(*args, **kwargs)
            here = thread()
            self.count += 1
            runs.add(here)
            try:
                check: Any = None
                before: Any = None
                if not isinstance(args[0] if args else kwargs.get("tensors"), _ROOTS):
                    args, kwargs = _once(args, kwargs)
                if checks:
                    check = checks[0]
                    before = check.backward_begins()
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    self._failed(error, args[0] if args else kwargs.get("tensors"))
                    tracebacks.hide(error)
                    raise
                if before is not None:
                    check.backward_ended(before)
                if unsettled:
                    self._settle()
                if looking:
                    self._ended(args[0] if args else kwargs.get("tensors"))
                return result
            finally:
                runs.discard(here)

        return backward

    def _ended(self, roots: Any) -> None:
        for reference in tuple(self.looking):
            case = reference()
            if case is not None:
                try:
                    case.backward_ended(roots)
                except Exception as problem:
                    self.forget(case)
                    log.debug(f"stopped observing backwards: {problem!r}")

    def _failed(self, error: BaseException, roots: Any) -> None:
        for reference in tuple(self.known):
            case = reference()
            try:
                if case is not None:
                    case.backward_failed(error, roots)
            except Exception as problem:
                log.debug(f"an error of a backward could not be explained: {problem!r}")
