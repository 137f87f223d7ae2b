"""The reductions of one model: what happens at the end of its backwards, and when a gradient still comes.

DDP without the flag waits for every parameter's gradient. At the end of each outermost backward that trains the model,
the parameters for which DDP still waits are marked as ready without gradient: DDP completes its buckets, with zeros,
and averages. If a gradient still comes in the same step, DDP is armed again, and finalized again at the end of that
backward: the mean is linear, so mean(mean(a) + b) = mean(a) + mean(b). Both are local acts of each rank: nothing is
agreed on, no graph is walked, and nothing is done in a step in which every parameter was used (pytorch issue 90171 has
asked for the like). docs/unused-parameters.md has the states and the path of a step.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from typing import Any, Dict, List

import torch

from ddpfix import log

from . import ddp, diagnosis, engine_view, reducer, several, strays
from .arrivals import Arrivals
from .first_step import FirstStep
from .states import ARMED, FINALIZED, IDLE, LOCAL, PENDING, RUNNING

_AT_END = reducer.at_end_of_backward
# States in which a gradient begins something.
_BETWEEN = (ARMED, PENDING, FINALIZED)
# In the first steps it is noticed if a backward passes by the outputs of the wrapper (a loss kept in the model).
_NOTICED_STEPS = 2
NOT_FINALIZED = (
    "ddpfix: DDP still waits for gradients after those that are missing were marked as ready, so they are not averaged."
    " Please report this with the versions of torch and ddpfix; DDPFIX_UNUSED=find does without."
)


class Finalizer:
    """The reductions of one model under DDP.

    Args:
        model: what is known of it.
    """

    def __init__(self, model: ddp.Wrapped) -> None:
        self._model = model
        self._wrapper = weakref.ref(model.wrapper, lambda _: self.end())
        self.parameters = model.parameters
        self.state = IDLE
        self.backwards = several.Backwards(model)
        self.arrivals = Arrivals(self, self.parameters)
        # Parameters that are left out of the reduction that runs -> the gradient that they had before it.
        self.left_out: Dict[int, Any] = {}
        self._almost_ended = functools.partial(_AT_END, self._ended)
        # What the engine said of the backward that runs.
        self._effect = engine_view.REACHES
        # The state before it.
        self._before = IDLE
        # The gradients of this rank alone, in a first step that may have more backwards.
        self._first = FirstStep(self)
        # Whether the hooks on parameters stay.
        self._keeps_arrivals = False
        # How many reductions have ended, and how many of them we have finalized.
        self._reductions = self._finalized = 0
        # Whether the last reduction was finalized by us; what follows one of DDP's own is left as it is.
        self._by_us = False
        # A tensor that lends its hooks to nodes.
        self._hooked = torch.zeros((), requires_grad=True)
        self._hooked._backward_hooks = OrderedDict(((0, self.output_reached),))
        # How many checkpoints had hidden a part of a graph when DDP was armed.
        self.armed_at = self._begun_at = 0
        ALL.add(self)

    @property
    def _reducer(self) -> Any:
        return self._wrapper().reducer  # type: ignore[union-attr]

    # Forwards.

    def forward_begins(self) -> None:
        """A forward with gradients enabled begins."""
        self._begun_at = engine_view.HIDING[0]
        backwards = self.backwards
        if backwards.done and self.state is not PENDING and self._wrapper().require_backward_grad_sync:  # type: ignore[union-attr]
            if backwards.usual:
                backwards.done = 0
            else:
                backwards.step_ended()
            if self.arrivals.on and not self._keeps_arrivals and self._reductions >= _NOTICED_STEPS:
                self.arrivals.stop()

    def forward_ended(self, output: Any) -> None:
        """A forward with gradients enabled has ended, and DDP is armed unless it ran under ``no_sync``."""
        if self._wrapper().require_backward_grad_sync:  # type: ignore[union-attr]
            if self.state is not ARMED:
                self._armed()
        elif self.state is not ARMED:
            # DDP stays armed through such a forward, if it is.
            self.state = LOCAL
            return
        for tensor in ddp.tensors(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                self._watch(tensor)

    def _watch(self, tensor: Any) -> None:
        """A hook on the node behind an output, which is not seen by whoever looks at the tensor (to save it, say)."""
        if not self._reductions:
            tensor.grad_fn.register_prehook(self._first.output())
        elif tensor.output_nr == 0:
            # This is all of what Tensor.register_hook does with the node, at a fifth of its time.
            tensor.grad_fn._register_hook_dict(self._hooked)
        else:
            tensor.grad_fn.register_prehook(self.output_reached)

    def _armed(self) -> None:
        self.state, self._by_us = ARMED, False
        self.left_out = {}
        self._first.ended()
        self.armed_at = self._begun_at
        if self.arrivals.on:
            self.arrivals.forget()

    # Backwards.

    def output_reached(self, gradients: Any) -> None:
        """A gradient has come to an output, within the outermost backward also under checkpointing."""
        if self.state in _BETWEEN:
            self._backward_begins()

    def passed_by(self) -> None:
        """A gradient has come to a parameter, in a backward that is not known to run."""
        if self.state is ARMED or self.state is PENDING or (self.state is FINALIZED and self._by_us):
            # A module may have been wrapped twice; the backward is that of the wrapper which was called.
            others = (other for other in ALL if other is not self and other.state is RUNNING)
            if not any(other.shares(self) for other in others):
                self._backward_begins()

    def shares(self, other: Finalizer) -> bool:
        """Whether two models have a parameter in common."""
        own = {id(parameter) for parameter in self.parameters}
        return any(id(parameter) in own for parameter in other.parameters)

    def _backward_begins(self) -> None:
        self._effect = self.arrivals.view.effect()
        if self._effect is engine_view.LEAVES_ALONE:
            if torch.is_grad_enabled():
                # The graph of these gradients (create_graph) leads to the parameters past all outputs.
                self._notice_for_good()
            return
        self._before = self.state
        if self.state is FINALIZED and self._effect is engine_view.UNSURE:
            return
        if self.state is FINALIZED:
            self._arm_again()
        self.state = RUNNING
        # DDP may queue its own end behind this callback; the one that it queues comes after that.
        _AT_END(self._almost_ended)
        if self._finalized or len(ALL) > 1:
            self._mark_at_start()

    def _arm_again(self) -> None:
        if self.backwards.one_more():
            # What a rank contributes has to be of one kind on all ranks: its own gradients, or their mean.
            self.backwards.used_between = self.backwards.used_between or self._first.used()
            if self.backwards.agree_to(self._first.may_restore()):
                self._first.restore()
        self.left_out = {}
        self.arrivals.forget()
        reducer.arm_again(self._reducer)

    def _notice_for_good(self) -> None:
        self._keeps_arrivals = True
        self.arrivals.go_on()

    def _mark_at_start(self) -> None:
        """No bucket has to wait for the end of backward because of what the engine will not reach.

        Not in the first step, from which DDP takes the order of its buckets. But where another model waits for the same
        backward, its buckets and those of this one come in the same order on all ranks only in this way.
        """
        if self._effect is engine_view.REACHES and reducer.AT_ANY_TIME and self.backwards.is_last():
            others = any(other.state is ARMED or other.state is RUNNING for other in ALL if other is not self)
            if others or (self._finalized and self._reductions > 1):
                self._mark(self.arrivals.to_be_left_out(at_once=others))

    def _mark(self, indices: List[int]) -> None:
        self.left_out.update((index, self.parameters[index].grad) for index in indices)
        reducer.mark_ready(self._reducer, self.parameters, indices)

    def _ended(self) -> None:
        if self.state is not RUNNING:
            return
        if self._effect is engine_view.UNSURE and not self._came():
            # It was for something else, or this rank has used no parameter: an old torch does not tell.
            self.state = self._before
            return
        last = self.backwards.ended()
        if self._complete():
            if self.arrivals.again:
                self._reduce_again()
            elif self.left_out or not self._reductions or not self.backwards.usual:
                self._reduced(by_us=bool(self.left_out))
            else:
                self.state, self._by_us = FINALIZED, False
                self._reductions += 1
                if not self._reductions & (self._reductions - 1):
                    strays.tell(self._model)
        elif last:
            self._finalize()
        else:
            self.state = PENDING
            self.backwards.wait(self)

    def _came(self) -> bool:
        """Whether a gradient has come to a parameter."""
        return bool(self.arrivals.came) if self.arrivals.on else bool(reducer.unfinished(self._reducer))

    def _complete(self) -> bool:
        """Whether DDP has finished by itself."""
        if self.arrivals.on:
            came = len(self.arrivals.came) + len(self.left_out)
            if came == len(self.parameters):
                return not reducer.AT_ANY_TIME or not reducer.unfinished(self._reducer)
            return False
        if reducer.unfinished(self._reducer):
            return False
        # Nothing was marked as ready; where nothing is hidden, this rank has used no parameter at all.
        return self._effect is not engine_view.UNSEEN

    def _reduce_again(self) -> None:
        """Gradients have come after DDP's own end, in the same backward: a reentrant checkpoint of one module twice."""
        self._notice_for_good()
        self._arm_again()
        self.backwards.ended()
        reducer.mark_ready(self._reducer, self.parameters, range(len(self.parameters)))
        reducer.at_end_of_backward(self._has_finalized)

    def finalize_pending(self) -> None:
        """The gradients are about to be used, and no further backward has come."""
        self.state = RUNNING
        reducer.within_backward(self._finalize)

    def _finalize(self) -> None:
        """Mark what DDP still waits for; called at the end of a backward."""
        strays.refuse(self._model)
        if not self._wrapper().gradient_as_bucket_view:  # type: ignore[union-attr]
            # Elsewhere DDP has divided and sent them in place already.
            self._first.keep(self._reductions)
        if self.arrivals.on:
            self._mark([n for n in self.arrivals.missing() if n not in self.left_out])
        elif self._effect is engine_view.UNSEEN and not reducer.unfinished(self._reducer):
            self._mark(list(range(len(self.parameters))))
        else:
            self._mark_named()
        # DDP has queued its end behind this callback.
        reducer.at_end_of_backward(self._has_finalized)

    def _mark_named(self) -> None:
        """Mark what torch says that it waits for, a hundred at a time."""
        named, more = reducer.missing(self._reducer)
        while named and not set(named) <= set(self.left_out):
            self._mark(named)
            named, more = reducer.missing(self._reducer) if more else ([], False)

    def _has_finalized(self) -> None:
        if reducer.unfinished(self._reducer):
            raise RuntimeError(NOT_FINALIZED)
        self._reduced(by_us=True)

    def _reduced(self, by_us: bool) -> None:
        self.state, self._by_us = FINALIZED, by_us
        self._reductions += 1
        for index in self._restored():
            self.parameters[index].grad = self.left_out[index]
        # Gradients that the loop drops are not kept here.
        self.left_out = dict.fromkeys(self.left_out)
        self.backwards.reduced(self.left_out)
        if not self._reductions & (self._reductions - 1):
            strays.tell(self._model)
        if not by_us:
            return
        self._first.reduced()
        if self.left_out and not self._finalized:
            self._tell()
        self._finalized += bool(self.left_out)
        self._notice_for_good()

    def _restored(self) -> List[int]:
        """Parameters whose gradients stay what they were: nobody used them, or they take none any more."""
        unused = self._model.skips.unused if self._model.skips is not None else frozenset()
        return [n for n in self.left_out if n in unused or not self.parameters[n].requires_grad]

    def _tell(self) -> None:
        names = [self._model.names[number] for number in sorted(self.left_out)]
        log.info(
            f"{len(names)} parameters of {type(self._wrapper().module).__name__} got no gradient"  # type: ignore
            f" ({diagnosis.in_short(names)}), which plain torch ends with 'Expected to have finished reduction'. Here"
            " DDP's reduction is finalized after each backward (DDPFIX_UNUSED=find sets the flag instead, off does"
            " neither)"
        )

    def end(self) -> None:
        """Undo: nothing is left on the model. What runs already is finalized as it has begun."""
        ALL.discard(self)
        self.arrivals.stop(for_good=True)
        self.backwards.end()


# The finalizers of all models.
ALL: weakref.WeakSet[Finalizer] = weakref.WeakSet()
