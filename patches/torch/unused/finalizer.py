"""Finalizes the reductions of one model at the end of its backwards, and again if more gradients come.

DDP without the flag waits for every parameter's gradient. At the end of each outermost backward that trains the model,
the parameters for which DDP still waits are marked as ready without gradient: DDP completes its buckets, with zeros,
and averages. If a gradient still comes in the same step, DDP is armed again, and finalized again at the end of that
backward: the mean is linear, so mean(mean(a) + b) = mean(a) + mean(b). Both are local acts of each rank: they
need no agreement and no walk through the graph, and do nothing in a step in which every parameter was used (pytorch
issue 90171 requests this). docs/unused-parameters.md has the states and the path of a step.
"""

from __future__ import annotations

import functools
from threading import get_ident
from typing import Any, Optional

import torch

from ..internals import autograd, reducer
from ..internals.tensors import Prehook
from ..pipeline import ddp
from ..pipeline.backward import Backwards
from ..pipeline.optimizers import Steps
from . import backward_count, states, unregistered
from .arrivals import Arrivals
from .backward_check import BackwardCheck, BackwardInForward
from .local_gradients import LocalGradients
from .states import ARMED, FINALIZED, IDLE, PENDING, RUNNING
from .used_map import UsedMap

_AT_END = reducer.at_end_of_backward
# States in which a gradient begins a backward of this model.
_BETWEEN = (ARMED, PENDING, FINALIZED)
# The first steps notice a backward that does not pass through the outputs of the wrapper (a loss kept in the model).
_NOTICED_STEPS = 2


class Finalizer:
    """The reductions of one model under DDP."""

    def __init__(self, model: ddp.Wrapped, steps: Steps, backwards: Backwards) -> None:
        self._model = model
        self._wrapper = ddp.until_destroyed(model.wrapper, self.destroyed)
        self.parameters = model.parameters
        self.state = IDLE
        self.backwards, self._all_backwards = backward_count.Backwards(model, steps), backwards
        self.arrivals = Arrivals(model, self)
        self.used = UsedMap(model, self, self.arrivals, backwards)
        self._queue_end = functools.partial(_AT_END, self._backward_ended)
        # What the backward that runs does with the parameters, according to the engine.
        self._effect = autograd.REACHES
        # The state before that backward.
        self._before = IDLE
        # Keeps this rank's own gradients in a first step that may have more backwards.
        self._first = LocalGradients(self.parameters, self.output_reached)
        # How many reductions have ended, and how many of them ddpfix has finalized.
        self.reductions = self._finalized = 0
        # Whether ddpfix finalized the last reduction; gradients after one that DDP finished itself are left alone.
        self._by_us = False
        # On the nodes behind outputs: a hook on a tensor itself would be visible, as when it is saved.
        self._hook = Prehook(self.output_reached)
        # Whether an optimizer has stepped within the backward that runs: torch then ends this step with its own error.
        self.left_to_torch = False
        # The thread in which a forward of the wrapper runs, or 0, and the backwards that the program makes there.
        self.inside = 0
        self.within: Optional[BackwardInForward] = None
        # How many checkpoints had hidden a part of a graph when DDP was armed.
        self.armed_at = self._begun_at = 0
        checks = states.add(self) and reducer.AT_ANY_TIME and autograd.TELLS
        self._check = BackwardCheck(model, self, backwards) if checks else None
        if self._check is None:
            self.arrivals.resume()

    def on(self, event: str) -> None:
        """Take the transition of this event, if the state has one (:mod:`.states`)."""
        transition = states.TRANSITIONS.get((self.state, event))
        if transition is not None:
            action, state = transition
            self.state = self._before if state is states.BEFORE else state
            if action:
                getattr(self, action)()

    @property
    def thread(self) -> int:
        """The thread that trains the model."""
        return self._model.thread

    @property
    def _reducer(self) -> Any:
        return self._wrapper().reducer  # type: ignore[union-attr]

    # Forwards.

    def forward_begins(self) -> None:
        """Called before a forward with gradients enabled."""
        self.inside = get_ident()
        if self._check is not None and self._check.ends_later:
            self._check.end()
        if self.used.is_due:
            self.used.settle()
        self._begun_at = autograd.ENGINE.checkpoints
        backwards = self.backwards
        if backwards.done and self.state is not PENDING and self._wrapper().require_backward_grad_sync:  # type: ignore[union-attr]
            if backwards.usual:
                backwards.done = 0
            else:
                backwards.step_ended()
                self.stop_checking()
            if self.reductions >= _NOTICED_STEPS:
                self.arrivals.pause()

    def forward_ended(self, output: Any) -> None:
        """Called after a forward with gradients enabled: DDP is armed unless it ran under ``no_sync``."""
        self.inside = 0
        is_reduced = self._wrapper().require_backward_grad_sync  # type: ignore[union-attr]
        self.on(states.FORWARD if is_reduced else states.LOCAL_FORWARD)
        if self.state is not ARMED:
            return
        outputs = [each for each in ddp.tensors(output) if each.requires_grad and each.grad_fn is not None]
        if self.reductions < _NOTICED_STEPS and not self.arrivals.on:
            # A custom function may run a backward of its own within this one.
            hides = autograd.hides_since(self._begun_at) or autograd.may_hide(outputs)
            if hides:
                self.arrivals.resume()
        for tensor in outputs:
            if not self.reductions:
                # In its first step the model notes which outputs a gradient has reached.
                tensor.grad_fn.register_prehook(self._first.output())
            elif tensor.output_nr == 0:
                self._hook.put(tensor.grad_fn)
            else:
                tensor.grad_fn.register_prehook(self.output_reached)
        if not self.reductions and len(outputs) > 1 and self._wrapper().gradient_as_bucket_view:  # type: ignore[union-attr]
            self._first.follow(self.arrivals.nodes)

    def forward_failed(self, error: BaseException) -> None:
        """Called when a forward has raised an error."""
        self.inside = 0

    def hook_parameters(self) -> None:
        """Record gradients in the first steps, as they are not checked at the end of backwards."""
        if self.reductions < _NOTICED_STEPS:
            self.arrivals.resume()

    def stop_checking(self) -> None:
        """Rely on hooks alone from now on."""
        if self._check is not None:
            self._check.stop()

    def backward_missed(self) -> None:
        """Finalize if DDP waits although a backward has ended, one of an engine that was called by hand."""
        if self._check is not None and self._check.waits():
            self._check.backward_missed()

    def arm(self) -> None:
        """Begin a reduction: DDP waits for gradients."""
        self._by_us = False
        if self._check is not None:
            self._check.forward_ended()
        self.arrivals.step_begins()
        self.used.step_begins()
        self._first.ended()
        self.armed_at = self._begun_at
        if self.arrivals.on:
            self.arrivals.forget()

    # Backwards.

    def output_reached(self, gradients: Any) -> None:
        """Called when a gradient comes to an output, within the outermost backward also under checkpointing."""
        if self.state in _BETWEEN:
            self._backward_begins()

    def parameter_reached(self) -> None:
        """Called when a gradient comes to a parameter in a backward that the finalizer does not know of."""
        waits = self.state is ARMED or self.state is PENDING or (self.state is FINALIZED and self._by_us)
        # A module may have been wrapped twice; the backward is that of the wrapper which was called.
        if waits and not any(other.state is RUNNING and states.share(self, other) for other in states.others(self)):
            self._backward_begins()

    def _backward_begins(self) -> None:
        self._effect = self.arrivals.view.effect()
        if self._effect is autograd.LEAVES_ALONE:
            if torch.is_grad_enabled():
                # The graph of these gradients (create_graph) leads to the parameters past all outputs.
                self.arrivals.keep()
        elif self.state is not FINALIZED or self._effect is not autograd.UNSURE:
            self._before = self.state
            self.on(states.GRADIENT)

    def arm_again(self) -> None:
        """Reduce the gradients of one more backward of a step, as those of a backward after a forward."""
        self._arm_again()
        self.run()

    def run(self) -> None:
        """Have the end of the backward noticed, and mark what the engine will not reach: no bucket waits for the end.

        That is not done in the first step, from which DDP takes the order of its buckets, unless another model waits
        for the same backward: otherwise the buckets of both would not come in the same order on all ranks.
        """
        self.left_to_torch = False
        self._first.backward_begins(self.arrivals.view)
        # DDP may queue its own end behind this callback; the one that it queues comes after that.
        _AT_END(self._queue_end)
        if self._effect is autograd.REACHES and reducer.AT_ANY_TIME and self.backwards.is_last():
            others = states.another_waits(self)
            # A mark is work in the stream of the output that comes first. What is behind an output of another stream
            # may complete the bucket, which is then sent before the mark's zeros are in it.
            ordered = len(self._first.streams) < 2
            if others or (self._finalized and self.reductions > 1 and ordered):
                self.arrivals.mark(self.arrivals.unreachable(at_once=others))

    def _arm_again(self) -> None:
        if self.backwards.one_more():
            # All ranks have to contribute the same kind: either their own gradients, or the mean.
            self.backwards.used_between = self.backwards.used_between or self._first.used()
            if self.backwards.agree_to(self._first.may_restore()):
                self._first.restore()
                self.arrivals.all_local()
        self.arrivals.reduction_begins()
        self.arrivals.forget()
        reducer.arm_again(self._reducer)

    def _backward_ended(self) -> None:
        if self.state is RUNNING:
            self.on(self._outcome())

    def _outcome(self) -> str:
        """Return the event that the end of this backward is."""
        if self._effect is autograd.UNSURE and not self.arrivals.any_arrived():
            # It was for something else, or this rank has used no parameter, which nobody can tell apart.
            return states.FOREIGN
        if self.inside and self.within is not None:
            return states.MISSING if self.within.is_unfinished() else states.UNPREPARED
        last = self.backwards.ended()
        if self._is_complete():
            usual = self.reductions and self.backwards.usual and not self.arrivals.left_out
            event = states.USUAL if usual else states.COMPLETE
            return states.TWICE if self.arrivals.arrived_twice else event
        return states.LEFT if self.left_to_torch else states.MISSING if last else states.MORE

    def _is_complete(self) -> bool:
        """Return whether DDP has finished by itself."""
        if self.arrivals.is_complete(self._effect):
            return True
        # Behind a reentrant checkpoint the gradients of the step can be seen, and no node that they come to.
        hidden = self._effect is autograd.UNSEEN and not self.arrivals.on
        return hidden and self._check is not None and self._check.checks() and self._check.has_reduced()

    def finish(self) -> None:
        """End a step like most, which DDP has completed by itself."""
        self._by_us = self.left_to_torch = False
        self.count_reduction()

    def wait(self) -> None:
        """Wait for a further backward of this step."""
        self.backwards.wait()

    def backward_ended_unfinished(self, effect: str) -> None:
        """Finalize after a backward that has ended, and was noticed only then."""
        self._effect = effect
        left, self.left_to_torch = self.left_to_torch, False
        if not left:
            self.backwards.ended()
        self.on(states.LEFT if left else states.MISSING)

    def reduce_again(self) -> None:
        """Reduce gradients that came after DDP's own end in one backward (a module in two reentrant checkpoints)."""
        self.arrivals.keep()
        self._arm_again()
        self.backwards.ended()
        reducer.mark_ready(self._reducer, self.parameters, range(len(self.parameters)))
        reducer.at_end_of_backward(self._marked)

    def finalize_afterwards(self) -> None:
        """Finalize outside of a backward."""
        reducer.within_backward(self.finalize)

    def finalize(self) -> None:
        """Mark the parameters that DDP still waits for; called at the end of a backward."""
        unregistered.raise_if_any(self._model)
        self._first.keep(self.reductions)
        self.arrivals.mark_missing(self._effect)
        # DDP has queued its end behind this callback.
        reducer.at_end_of_backward(self._marked)

    def _marked(self) -> None:
        self.arrivals.check_finished(is_first=not self.reductions)
        self.on(states.MARKED)

    def finalized(self) -> None:
        """End a reduction that ddpfix has finalized."""
        self._end_reduction(by_us=True)

    def reduced(self) -> None:
        """End a reduction that DDP has completed by itself, in its first step or one with several backwards."""
        # Where parameters get several gradients in a step, torch has ended this loop before: all of them are averaged.
        several = self._finalized and self.backwards.expected > 1 and not self.backwards.one_gradient_each
        self._end_reduction(by_us=bool(self.arrivals.left_out or several))

    def _end_reduction(self, by_us: bool) -> None:
        self._by_us = by_us
        self.arrivals.reduced()
        self.backwards.reduced(self.arrivals.left_out)
        self.count_reduction()
        if by_us:
            self._finalized += bool(self.arrivals.left_out)
            self.arrivals.keep()

    def count_reduction(self) -> None:
        """Count one that has ended, and now and then see whether DDP knows all parameters of the model."""
        self.reductions += 1
        if not self.reductions & (self.reductions - 1):
            unregistered.warn_if_any(self._model)
        self.used.reduced()

    def settled(self) -> None:
        """Called when gradients are what they stay: no rank exchanges anything more about this reduction."""
        if self._by_us:
            self._first.reduced()
        if self.used.is_on and (self._check is None or not self._check.checks()):
            # A rank has to notice each reduction after which the others exchange.
            self.arrivals.keep()

    def destroyed(self) -> None:
        """Forget nodes, each of which keeps its parameter, and gradients: the wrapper was destroyed."""
        self.end()
        self.state = IDLE
        self._first.ended()
        self.arrivals.release()
        if self._check is not None:
            self._check.release()

    def end(self) -> None:
        """Undo: remove all hooks from the model. A backward that runs already is still finalized."""
        states.discard(self)
        self.used.end()
        self._first.unhook()
        if self._check is not None:
            self._check.forget()
        if self.within is not None:
            self._all_backwards.check_no_more(self.within)
        self.arrivals.end()
