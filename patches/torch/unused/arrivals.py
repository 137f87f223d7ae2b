"""The gradients that have come to one model, and the parameters that were marked as ready without one."""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence

import torch

from ddpfix.exchange import lowest_rank
from ddpfix.models import graph
from ddpfix.rules.finding import in_short

from ..internals import autograd, modes, reducer
from ..pipeline import ddp
from .skipped_layers import SKIPPED
from .states import RUNNING, Reduction

NOT_FINALIZED = (
    "ddpfix: DDP still waits for gradients after ddpfix marked the missing ones as ready, so this step is not"
    " averaged.\nPlease report this with your versions of torch and ddpfix."
    " DDPFIX_UNUSED=find trains without these marks."
)
# How often the engine's answer is compared with the gradients that came before it is relied on.
_COMPARED = 2


class Arrivals:
    """What has come in the reduction that runs, what is left out of it, and what restores that afterwards.

    Hooks on the nodes at which gradients arrive cost some microseconds each, also after they were removed. A model has
    them where it leaves parameters out, because a gradient that comes after the reduction has to be noticed whatever
    path its backward takes; and in its first steps where backwards are not checked at their end.
    """

    def __init__(self, model: ddp.Wrapped, reduction: Reduction) -> None:
        self._model, self._reduction = model, reduction
        self._parameters: Sequence[Any] = model.parameters
        self.nodes = graph.accumulators(self._parameters)
        self.view = autograd.View(self._parameters, self.nodes)
        self._hooks: List[Any] = []
        self._over = self._stays = False
        # The numbers of the parameters whose gradients have come since DDP was armed.
        self.arrived: Dict[int, None] = {}
        # Parameters that are left out of the reduction that runs -> what restores their gradients, see :func:`_kept`.
        self.left_out: Dict[int, Any] = {}
        # Those whose gradients have come in backwards that are not reduced, under no_sync; None where nobody knows.
        self.local: Optional[Dict[int, None]] = None
        # Whether a gradient has come twice in the same backward.
        self.arrived_twice = False
        # The parameters that the engine will not reach, until they are compared with the arrived ones; how often that
        # was done, and whether the engine was wrong once.
        self._expected: Sequence[int] = ()
        self._compared = 0
        self._hidden = False
        # The parameters without a gradient in all backwards of the step so far; None before the first one has ended.
        self._unused: Optional[FrozenSet[int]] = None
        self._zeros = self._reported = False
        # Whether nothing is known of what the last reduction has left out, and whether DDP has completed it by itself
        # in backwards of reentrant checkpoints: then marks do nothing, and nothing was left out.
        self._is_hidden = self._is_unseen = False

    # Hooks.

    @property
    def on(self) -> bool:
        return bool(self._hooks)

    def resume(self) -> None:
        """Record the gradients that come from here on."""
        if not self._hooks and not self._over:
            self._hooks = [node.register_prehook(self._recorder(n)) for n, node in enumerate(self.nodes)]

    def keep(self) -> None:
        """Record them in all steps."""
        self._stays = True
        self.resume()

    def pause(self) -> None:
        """Record them no more, unless they are kept."""
        if self._hooks and not self._stays:
            self._stop()

    def end(self) -> None:
        """Record them never again."""
        self._over = True
        self._stop()

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.arrived, self.local = {}, None

    def release(self) -> None:
        """Drop what keeps parameters and gradients; nothing is recorded any more."""
        self.nodes, self.left_out = [], {}
        self.view.release()

    def forget(self) -> None:
        """Forget the recorded gradients: DDP is armed, and what has come so far is reduced."""
        self._compare()
        self.arrived, self.arrived_twice = {}, False

    def all_local(self) -> None:
        """Record that this rank has its own gradients again, which have to be averaged."""
        if self.local is not None:
            self.local = {n: None for n, p in enumerate(self._parameters) if p.grad is not None}

    def _recorder(self, number: int) -> Callable[[Any], None]:
        reduction = self._reduction

        def record(gradients: Any) -> None:
            if reduction.state is not RUNNING:
                reduction.parameter_reached()
            if reduction.state is not RUNNING:
                if self.local is not None:
                    self.local[number] = None
            elif number not in self.left_out:
                self.arrived_twice = self.arrived_twice or number in self.arrived
                self.arrived[number] = None

        return record

    def hides(self) -> bool:
        """Return whether nothing is known of gradients: behind a reentrant checkpoint they come in its own backward."""
        return autograd.hides_since(self._reduction.armed_at)

    def unreachable(self, at_once: bool) -> List[int]:
        """Return the parameters that the beginning backward will not reach and no earlier one has; [] while unsure."""
        if self._hidden or not self.on or self.hides():
            return []
        numbers = [number for number in self.view.left_out() if number not in self.arrived]
        if self._compared >= _COMPARED:
            return numbers
        self._expected = numbers
        return numbers if at_once and numbers and not autograd.may_hide_here() else []

    def _compare(self) -> None:
        """Stop relying on the engine once it was wrong: it does not see what a reentrant checkpoint hides."""
        if self._expected:
            self._compared += 1
            self._hidden = self._hidden or any(number in self.arrived for number in self._expected)
            self._expected = ()

    # A step.

    def step_begins(self) -> None:
        """Report what the step before has left out, and begin another one."""
        self.reduction_begins()
        if self._unused and not self._reported:
            # In front of the next forward, where plain torch would have raised its error.
            self._reported = True
            self._report([self._model.names[number] for number in sorted(self._unused)])
        self._unused = None

    def _report(self, names: Sequence[str]) -> None:
        count = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
        cure = (
            "ddpfix gives them a zero gradient, so weight decay and momentum still update them.\n"
            "Set DDPFIX_UNUSED=find to leave them untouched."
            if self._zeros
            else "ddpfix trains on, as find_unused_parameters=True does."
        )
        # Of the last backward: an earlier micro-batch, under no_sync, may have given them one.
        lowest_rank.report(
            f"absent/{self._model.number}",
            f"{count} of {type(self._model.wrapper.module).__name__} ({in_short(names)}) got no gradient in a backward."
            f" Plain DDP would crash; {cure}",
        )

    def reduction_begins(self) -> None:
        """Forget what was left out: DDP is armed."""
        self.left_out, self._is_unseen = {}, False

    def complete(self) -> None:
        """Record that a reduction has ended to which each parameter has contributed."""
        self._unused = frozenset()
        self.local = {} if self._hooks else None

    # A backward.

    def mark(self, indices: Sequence[int]) -> None:
        """Mark these; called within a backward."""
        if not self._is_unseen and not self._known().issuperset(indices):
            self._reduction.used.ask()
        views = self._model.wrapper.gradient_as_bucket_view
        with torch.no_grad(), modes.hidden():
            self.left_out.update((index, _kept(self._parameters[index].grad, views)) for index in indices)
        reducer.mark_ready(self._model.wrapper.reducer, self._parameters, indices)

    def mark_missing(self, effect: str) -> None:
        """Mark all parameters that DDP still waits for; called at the end of a backward."""
        waiting = self._model.wrapper.reducer
        if self.on:
            self.mark([n for n in range(len(self.nodes)) if n not in self.arrived and n not in self.left_out])
        elif effect is autograd.UNSEEN and not reducer.unfinished(waiting):
            self._is_unseen = self.hides()
            self.mark(range(len(self._parameters)))
        else:
            # torch lists a hundred at a time.
            named, more = reducer.missing(waiting)
            while named and not set(named) <= set(self.left_out):
                self.mark(named)
                named, more = reducer.missing(waiting) if more else ([], False)

    def any_arrived(self) -> bool:
        """Return whether a gradient has come to a parameter."""
        return bool(self.arrived) if self.on else bool(reducer.unfinished(self._model.wrapper.reducer))

    def is_complete(self, effect: str) -> bool:
        """Return whether DDP has finished by itself in a backward with this effect."""
        if self.on:
            arrived = len(self.arrived) + len(self.left_out)
            if arrived == len(self._parameters):
                return not reducer.AT_ANY_TIME or not reducer.unfinished(self._model.wrapper.reducer)
            return False
        if reducer.unfinished(self._model.wrapper.reducer):
            return False
        # Nothing was marked as ready; where nothing is hidden, this rank has used no parameter at all.
        return effect is not autograd.UNSEEN

    # The end of a reduction.

    def check_finished(self, is_first: bool) -> None:
        """Called when DDP's own end has run, after parameters were marked; RuntimeError: it still waits."""
        # Before torch 2.1 to ask after the first reduction is a collective, which a rank that left nothing out does not
        # run. There all parameters have arrived or are marked: see is_complete.
        if (reducer.AT_ANY_TIME or not is_first) and reducer.unfinished(self._model.wrapper.reducer):
            raise RuntimeError(NOT_FINALIZED)

    def reduced(self) -> None:
        """Record that a reduction has ended."""
        self._is_hidden = self.hides()

    def leaves_out(self) -> bool:
        """Return whether something got no gradient in any backward of the step so far."""
        return not self._is_unseen and bool(self._still_unused(self.left_out))

    def _still_unused(self, numbers: Iterable[int]) -> FrozenSet[int]:
        """Return those that the earlier backwards of the step have left out, too."""
        return frozenset(n for n in numbers if self._unused is None or n in self._unused)

    def _known(self) -> FrozenSet[int]:
        """Return those that all ranks have left out, as each of them knows: they skip the same layers (LayerDrop)."""
        skipped = SKIPPED.of(self._model)
        return frozenset() if skipped is None else skipped.parameters

    def unused(self) -> List[int]:
        """Return those that this rank has not used since the reduction before: not under ``no_sync`` either."""
        if self._is_unseen:
            return []
        used = self.local
        if used is None:
            return [number for number, kept in self.left_out.items() if kept is None]
        return [number for number in self.left_out if number not in used]

    def settle(self, unused: Optional[AbstractSet[int]]) -> None:
        """Restore the gradients that no rank has replaced (None: nobody knows which), and note what was left out."""
        zeros, restored = False, self._known().union(unused or ())
        for number, kept in self.left_out.items():
            parameter = self._parameters[number]
            if number in restored or not parameter.requires_grad:
                _restore(parameter, kept)
            else:
                zeros = zeros or (unused is None and kept is None)
        # Zeros where there was no gradient, since ranks could not exchange what no rank has used.
        self._unused, self._zeros = self._still_unused(() if self._is_hidden else self.left_out), zeros
        # Keep no reference to gradients that the loop may drop.
        self.left_out = dict.fromkeys(self.left_out)
        self.local = {} if self._hooks else None


def _kept(gradient: Any, views: bool) -> Any:
    """Return what restores a gradient that DDP averages in place: itself, and a copy unless it is in a bucket."""
    return None if gradient is None else (gradient, None if views else gradient.clone())


def _restore(parameter: Any, kept: Any) -> None:
    if kept is None:
        parameter.grad = None
    elif kept[1] is not None:
        with torch.no_grad(), modes.hidden():
            kept[0].copy_(kept[1])
        parameter.grad = kept[0]
