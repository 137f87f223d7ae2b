"""Models whose reductions are checked at the end of each backward, without hooks on their parameters.

A hook on the node of a parameter costs some microseconds in each backward, for good: torch calls it into Python even
after it was removed. So a model has none before a step shows that it needs them. Its first steps have hooks on outputs.
Where each of them had one backward, which DDP has completed by itself, the outputs of later steps are only marked, and
the wrapper of ``torch.autograd.backward`` asks DDP at the end of each backward whether it has finished. The first step
that is another one is still finalized or averaged; from the next forward on the model has its hooks again, for good.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Dict, List, Optional, Protocol, Tuple

from torch import Tensor, nn

from ..internals import autograd, modes, reducer
from ..internals.autograd import HIDING, MARK
from ..internals.reducer import has_reduced
from ..internals.tensors import written
from ..internals.wrapper import in_forward
from ..pipeline import ddp
from ..pipeline.backward import RUNS, Backwards
from . import unregistered
from .backward_count import Within
from .states import ARMED, FINALIZED, LOCAL, PLACE
from .transitions import FORWARD, USUAL

# After this number of reductions it is decided, once, whether outputs are only marked.
STEPS = 3
# The gradient of one parameter in front of a backward, and how often it was written to.
Before = Tuple[Any, int]
_FIRST_STEPS: Before = (None, -1)


class Hooked(Protocol):
    """The reductions of a model, see :class:`.finalizer.Finalizer`."""

    state: str
    armed_at: int
    within: Optional[Within]
    # The thread in which a forward of the wrapper runs, or 0.
    inside: int

    @property
    def parameters(self) -> Any: ...

    @property
    def used(self) -> Any: ...

    @property
    def backwards(self) -> Any: ...

    def output_reached(self, gradients: Any) -> None: ...

    def forward_begins(self) -> None: ...

    def forward_ended(self, output: Any) -> None: ...

    def forward_failed(self, error: BaseException) -> None: ...

    def on(self, event: str) -> None: ...

    def backward_ended_unfinished(self, effect: str) -> None: ...

    def catch_up(self) -> None: ...

    def hook_parameters(self) -> None: ...


class Steady:
    """The steps of one model as long as they repeat each other."""

    def __init__(self, model: ddp.Wrapped, hooked: Hooked, backwards: Backwards) -> None:
        self._model, self._hooked = model, weakref.ref(hooked)
        self._wrapper = weakref.ref(model.wrapper)
        self._backwards = backwards
        # How many backwards there were in steps whose gradients are reduced.
        self._noticed = 0
        # Whether outputs are marked in place of hooks, for the last time; the parameter whose gradient shows that some
        # have come.
        self._marks = self._leaves = False
        self._parameter: Any = None
        self._mark = object()
        # Whether the program has prepared DDP for a backward by itself.
        self._is_by_hand = False
        backwards.check(self)

    def may_mark(self, reductions: int) -> bool:
        """Begin to mark outputs, or decide never to, in front of a forward after this number of reductions by DDP."""
        if reductions < STEPS or not self.checks():
            return False
        if self._noticed != reductions or self._smallest() is None:
            self.end()
            return False
        self._marks = True
        self._model.attach(PLACE, after=self._forward_ended)
        return True

    def _smallest(self) -> Any:
        """Return the smallest parameter that is trained and no subclass of torch's own; None where there is none."""
        if self._parameter is None:
            # A mode of the program's counts what is read of a parameter.
            with modes.Uncounted():
                plain = [
                    each for each in self._hooked_now().parameters if type(each) is nn.Parameter and each.requires_grad
                ]
                self._parameter = min(plain, key=lambda each: int(each.numel()), default=None)
        return self._parameter

    def _hooked_now(self) -> Hooked:
        return self._hooked()  # type: ignore[return-value]

    # Forwards.

    def _forward_ended(self, output: Any) -> None:
        hooked: Any = self._hooked()
        if self._wrapper().require_backward_grad_sync:  # type: ignore[union-attr]
            hooked.state = ARMED
        elif hooked.state is not ARMED:
            hooked.state = LOCAL
            return
        for tensor in (output,) if type(output) is Tensor else ddp.tensors(output):
            node = tensor.grad_fn
            if node is not None:
                node.metadata[MARK] = self._mark

    # Backwards.

    def backward_begins(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Called before each outermost backward; returns what :meth:`backward_ended` compares with."""
        hooked: Any = self._hooked()
        if self._is_of_another_thread():
            return None
        state = hooked.state
        if self._marks and state is ARMED:
            return written(self._parameter)
        if not self._marks:
            if hooked.inside == threading.get_ident():
                # From now on backwards within the wrapper's forward are left to it.
                self.end()
                return self._follow_within(hooked).backward_begins(args, kwargs)
            self._noticed += state is not LOCAL
            return written(self._parameter) if state is ARMED and self._smallest() is not None else _FIRST_STEPS
        if state is FINALIZED:
            self._second(args, kwargs)
            return _FIRST_STEPS
        return None

    def _is_of_another_thread(self) -> bool:
        """Return whether a backward may be another model's, while this one's runs: DDP waits in the middle of it."""
        return len(RUNS) > 1 and self._model.thread != threading.get_ident()

    def _follow_within(self, hooked: Hooked) -> Within:
        # Not each of these reductions is noticed, so that ranks would count them differently.
        hooked.used.end()
        hooked.within = Within(hooked, self._model.wrapper)
        self._backwards.check(hooked.within)
        return hooked.within

    def _prepared_by_hand(self, hooked: Hooked) -> None:
        """A backward after the reduction has left DDP waiting: the program has prepared it within a forward."""
        hooked.on(FORWARD)
        hooked.backward_ended_unfinished(autograd.REACHES)
        self._is_by_hand = True

    def backward_ended(self, before: Before, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Called after a backward that has raised nothing."""
        if self._is_of_another_thread():
            return
        hooked: Any = self._hooked()
        if self._marks and hooked.state is ARMED and hooked.within is None:
            reduced = has_reduced(self._wrapper().reducer, self._parameter, before)  # type: ignore[union-attr]
            if reduced:
                # The transition of (ARMED, USUAL).
                hooked.state, hooked.left_to_torch, hooked.armed_at = FINALIZED, False, HIDING[0]
                hooked.reductions = count = hooked.reductions + 1
                if not count & (count - 1):
                    unregistered.warn_if_any(self._model)
                if count >= hooked.used.next:
                    hooked.used.settle()
            elif reduced is None:
                self.backward_missed()
            else:
                self._nothing_came(hooked, args, kwargs)
        else:
            self._unmarked_ended(hooked, before, args, kwargs)

    def _unmarked_ended(self, hooked: Any, before: Before, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """A backward has ended for which DDP was not armed by a forward whose outputs were marked."""
        if hooked.within is not None:
            hooked.within.backward_ended(before, args, kwargs)
            return
        if hooked.state is not ARMED:
            if hooked.state is FINALIZED and reducer.unfinished(self._wrapper().reducer):  # type: ignore[union-attr]
                self._prepared_by_hand(hooked)
            return
        if reducer.unfinished(self._wrapper().reducer):  # type: ignore[union-attr]
            self.backward_missed()
        elif before is not _FIRST_STEPS and has_reduced(self._wrapper().reducer, self._parameter, before):  # type: ignore[union-attr]
            # It has passed no output (a loss that is kept in the model). Else it was for something else.
            hooked.on(USUAL)

    def backward_missed(self) -> None:
        """A backward has ended that has left DDP waiting, and has passed no hook."""
        hooked = self._hooked_now()
        self._leave()
        hooked.backward_ended_unfinished(autograd.REACHES)

    def _nothing_came(self, hooked: Hooked, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """A backward of something else has ended, or one in which this rank has used no parameter."""
        self._leave()
        nodes = _behind(args, kwargs)
        if not any(autograd.has_mark(node, self._mark) for node in nodes):
            return
        if set(nodes).isdisjoint(autograd.accumulators(hooked.parameters)):
            hooked.backward_ended_unfinished(autograd.UNSEEN)
        else:
            # The program has taken the gradients away within the backward.
            hooked.on(USUAL)

    def _second(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """A backward begins after the reduction: perhaps a further one of this model's outputs."""
        self._leave()
        if in_forward():
            # The program may prepare DDP by hand; ranks would count such reductions differently.
            self._hooked_now().used.end()
        for node in _behind(args, kwargs):
            if autograd.has_mark(node, self._mark):
                node.register_prehook(self._hooked_now().output_reached)

    # The end.

    def stop(self) -> None:
        """End, or before the next forward, in the thread that trains the model: no half of a backward is noticed."""
        if self._model.thread == threading.get_ident():
            self.end()
        else:
            self._end_later()

    def waits(self) -> bool:
        """Return whether DDP waits for gradients of a backward that has ended, past the wrapper of all backwards."""
        hooked, wrapper = self._hooked_now(), self._wrapper()
        return hooked.state is ARMED and wrapper is not None and bool(reducer.unfinished(wrapper.reducer))

    def _leave(self) -> None:
        """Put hooks on the outputs of the next forward again; the marks count until then."""
        if self._leaves:
            return
        hooked = self._hooked_now()
        hooked.catch_up()
        self._leaves = True

        def begins() -> None:
            self.end()
            if self._is_by_hand:
                self._follow_within(hooked)
            hooked.forward_begins()

        self._model.attach(PLACE, begins, hooked.forward_ended, hooked.forward_failed)

    def end(self) -> None:
        """Check nothing any more, and leave the model to its hooks."""
        if self.forget():
            hooked = self._hooked_now()
            if self._marks and not self._leaves:
                hooked.catch_up()
            hooked.hook_parameters()
            self._model.attach(PLACE, hooked.forward_begins, hooked.forward_ended, hooked.forward_failed)

    def checks(self) -> bool:
        """Return whether backwards are still checked."""
        return self._backwards.checks(self)

    def release(self) -> None:
        """Forget the parameter that is read: the wrapper was destroyed."""
        self._parameter = None

    def _end_later(self) -> None:
        hooked = self._hooked_now()
        if self._leaves or not self._backwards.checks(self):
            return

        def begins() -> None:
            self.end()
            hooked.forward_begins()

        failed = None if self._marks else hooked.forward_failed
        self._model.attach(PLACE, begins, self._forward_ended if self._marks else hooked.forward_ended, failed)

    def forget(self) -> bool:
        """Check nothing any more; return whether anything was checked."""
        checked = self.checks()
        self._backwards.check_no_more(self)
        return checked


def _behind(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
    """Return the nodes that a backward with these arguments runs; none where it was asked for some gradients only."""
    if kwargs.get("inputs") is not None or len(args) > _INPUTS:
        return []
    with modes.hidden():
        return autograd.behind(args[0] if args else kwargs["tensors"])


# The place of "inputs" among the arguments of torch.autograd.backward.
_INPUTS = 5
