"""Backwards that pass no hook of their model: the wrapper of ``torch.autograd.backward`` asks DDP at their end.

A loss that is kept in the model passes no output, and what a reentrant checkpoint hides passes the outputs alone. One
parameter, read before and after, shows whether gradients have come. Only the single model of a process is checked, as
long as each of its steps has one backward: which of several models a backward is of, only hooks notice.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Optional, Tuple

from torch import nn

from ..internals import autograd, modes, reducer
from ..internals.tensors import written
from ..pipeline import ddp
from ..pipeline.backward import Backwards
from .states import ARMED, FINALIZED, FORWARD, UNPREPARED, USUAL, Reduction

# The gradient of one parameter in front of a backward, and how often it was written to.
Before = Tuple[Any, int]
# In their place: nothing was read, or this model's reduction had ended before.
_UNREAD: Before = (None, -1)
_AFTER_REDUCTION: Before = (None, -2)


class BackwardCheck:
    """The check of one model's backwards."""

    def __init__(self, model: ddp.Wrapped, hooked: Reduction, backwards: Backwards) -> None:
        self._model = model
        self._hooked: Any = weakref.ref(hooked)
        self._wrapper = weakref.ref(model.wrapper)
        self._backwards = backwards
        # The parameter whose gradient shows that some have come, and what was read of it.
        self._parameter: Any = None
        self._before = _UNREAD
        # Whether hooks have to be put on parameters in front of the next forward.
        self.ends_later = False
        backwards.check(self)

    @property
    def _reducer(self) -> Any:
        return self._wrapper().reducer  # type: ignore[union-attr]

    def _smallest(self) -> Any:
        """Return the smallest parameter that is trained and no subclass of torch's own; None where there is none."""
        if self._parameter is None:
            # A mode of the program's counts what is read of a parameter.
            with modes.Uncounted():
                every = self._hooked().parameters
                plain = [each for each in every if type(each) is nn.Parameter and each.requires_grad]
                self._parameter = min(plain, key=lambda each: each.numel(), default=None)
        return self._parameter

    def forward_ended(self) -> None:
        """Forget what was read before an earlier backward: the next one may be of an engine that is called by hand."""
        self._before = _UNREAD

    # Backwards.

    def backward_begins(self) -> Any:
        """Called before each outermost backward; returns what :meth:`backward_ended` gets, None for others."""
        hooked = self._hooked()
        if self._is_of_another_thread():
            return None
        if hooked.inside == threading.get_ident():
            # From now on backwards within the wrapper's forward are left to it.
            self.end()
            return self._follow_within(hooked).backward_begins()
        if hooked.state is FINALIZED:
            self._before = _UNREAD
            return _AFTER_REDUCTION
        self._before = written(self._parameter) if hooked.state is ARMED and self._smallest() is not None else _UNREAD
        return self._before

    def _is_of_another_thread(self) -> bool:
        """Return whether a backward may be another model's, while this one's runs: DDP waits in the middle of it."""
        return len(autograd.ENGINE.threads) > 1 and self._model.thread != threading.get_ident()

    def _follow_within(self, hooked: Reduction) -> BackwardInForward:
        # Not each of these reductions is noticed, so that ranks would count them differently.
        hooked.used.end()
        hooked.within = within = BackwardInForward(hooked, self._model.wrapper)
        self._backwards.check(within)
        return within

    def has_reduced(self) -> bool:
        """Return whether the backward that runs or has just ended has brought gradients, all of which are reduced."""
        if self._before is _UNREAD or reducer.unfinished(self._reducer):
            return False
        gradient, version = written(self._parameter)
        return gradient is not self._before[0] or version != self._before[1]

    def backward_ended(self, before: Before) -> None:
        """Called after a backward that has raised nothing."""
        hooked = self._hooked()
        if self._is_of_another_thread():
            return
        if hooked.within is not None:
            hooked.within.backward_ended(before)
        elif before is _AFTER_REDUCTION:
            if hooked.state is FINALIZED and reducer.unfinished(self._reducer):
                # The program has prepared DDP for this backward by hand.
                hooked.on(FORWARD)
                self.backward_missed()
        elif hooked.state is ARMED:
            if reducer.unfinished(self._reducer):
                self.backward_missed()
            elif self.has_reduced():
                # It has passed no output. Else it was for something else.
                hooked.on(USUAL)

    def waits(self) -> bool:
        """Return whether DDP waits for gradients of a backward that has ended, past the wrapper of all backwards."""
        wrapper = self._wrapper()
        return self._hooked().state is ARMED and wrapper is not None and bool(reducer.unfinished(wrapper.reducer))

    def backward_missed(self) -> None:
        """Finalize after a backward that has left DDP waiting, and has passed no hook."""
        self._hooked().backward_ended_unfinished(autograd.REACHES)

    # The end.

    def stop(self) -> None:
        """End, or before the next forward, in the thread that trains the model: no half of a backward is noticed."""
        if self._model.thread == threading.get_ident():
            self.end()
        else:
            self.ends_later = self.checks()

    def end(self) -> None:
        """Check nothing any more, and leave the model to its hooks."""
        self.ends_later = False
        if self.forget():
            self._hooked().hook_parameters()

    def checks(self) -> bool:
        """Return whether backwards are still checked."""
        return self._backwards.checks(self)

    def release(self) -> None:
        """Forget the parameter that is read: the wrapper was destroyed."""
        self._parameter = None
        self._before = _UNREAD

    def forget(self) -> bool:
        """Check nothing any more; return whether anything was checked."""
        checked = self.checks()
        self._backwards.check_no_more(self)
        return checked


class BackwardInForward:
    """The backwards within forwards of one model, from the first one on.

    Lightning's manual optimization makes them: the training step is the wrapped module's forward, and calls
    ``prepare_for_backward`` before each backward. No output leads to these gradients, so each such backward counts as a
    step: DDP is armed when it begins, and finalized when it ends, if it waits for gradients then. One that leaves DDP
    without anything to wait for stays this rank's own, as in plain torch.
    """

    def __init__(self, hooked: Any, wrapper: Any) -> None:
        self._hooked, self._wrapper = weakref.ref(hooked), weakref.ref(wrapper)

    def backward_begins(self) -> Optional[Any]:
        """Called before each outermost backward; returns what :meth:`backward_ended` gets, None for others."""
        hooked: Any = self._hooked()
        if hooked is None or hooked.inside != threading.get_ident():
            return None
        hooked.backwards.done = 0
        hooked.on(FORWARD)
        return hooked

    def backward_ended(self, hooked: Any) -> None:
        """Called after such a backward, which has raised nothing."""
        if hooked.state is ARMED:
            # Its parameters had no hooks yet.
            if self.is_unfinished():
                hooked.backward_ended_unfinished(autograd.REACHES)
            else:
                hooked.on(UNPREPARED)
        hooked.backwards.done = 0

    def is_unfinished(self) -> bool:
        """Return whether DDP waits for gradients: it was prepared, and some have come."""
        wrapper = self._wrapper()
        return wrapper is not None and bool(reducer.unfinished(wrapper.reducer))
