"""Marks parameters for which DDP waits as ready without gradient, and restores what it has put in their place."""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence

import torch

from ddpfix.exchange import lowest_rank
from ddpfix.rules.names import in_short

from ..internals import autograd, modes, reducer
from ..pipeline import ddp
from .gradient_hooks import GradientHooks
from .skipped_layers import SKIPPED

NOT_FINALIZED = (
    "ddpfix: DDP still waits for gradients after ddpfix marked the missing ones as ready, so this step is not"
    " averaged.\nPlease report this with your versions of torch and ddpfix."
    " DDPFIX_UNUSED=find trains without these marks."
)


class Marks:
    """The parameters that are left out of the reduction that runs.

    Args:
        arrivals: the gradients that have come, where they are recorded; it holds the numbers of these parameters.
        ask: called before something is left out that other ranks may have used.
    """

    def __init__(self, model: ddp.Wrapped, arrivals: GradientHooks, ask: Callable[[], None]) -> None:
        self._model, self._arrivals, self._ask = model, arrivals, ask
        self._parameters: Sequence[Any] = model.parameters
        self._absent = UnusedReport(model)
        # Whether nothing is known of what the last reduction has left out, and whether DDP has completed it by itself
        # in backwards of reentrant checkpoints: then marks do nothing, and nothing was left out.
        self._is_hidden = self._is_unseen = False

    @property
    def left_out(self) -> Dict[int, Any]:
        """Their numbers -> the gradients that they had before it, see :func:`_kept`."""
        return self._arrivals.left_out

    @property
    def _reducer(self) -> Any:
        return self._model.wrapper.reducer

    # A step.

    def step_begins(self) -> None:
        """Report what the step before has left out, and begin another one."""
        self.reduction_begins()
        self._absent.step_ended()

    def reduction_begins(self) -> None:
        """Forget what was left out: DDP is armed."""
        self._arrivals.left_out, self._is_unseen = {}, False

    def complete(self) -> None:
        """Record that a reduction has ended to which each parameter has contributed."""
        self._absent.none()
        self._arrivals.reduced()

    # A backward.

    def mark(self, indices: Sequence[int]) -> None:
        """Mark these; called within a backward."""
        if not self._is_unseen and not self._known().issuperset(indices):
            self._ask()
        views = self._model.wrapper.gradient_as_bucket_view
        with torch.no_grad(), modes.hidden():
            self.left_out.update((index, _kept(self._parameters[index].grad, views)) for index in indices)
        reducer.mark_ready(self._reducer, self._parameters, indices)

    def mark_missing(self, effect: str) -> None:
        """Mark all parameters that DDP still waits for; called at the end of a backward."""
        if self._arrivals.on:
            self.mark([n for n in self._arrivals.missing() if n not in self.left_out])
        elif effect is autograd.UNSEEN and not reducer.unfinished(self._reducer):
            self._is_unseen = self._arrivals.hides()
            self.mark(range(len(self._parameters)))
        else:
            self._mark_named()

    def _mark_named(self) -> None:
        """Mark the parameters that torch lists as missing, a hundred at a time."""
        named, more = reducer.missing(self._reducer)
        while named and not set(named) <= set(self.left_out):
            self.mark(named)
            named, more = reducer.missing(self._reducer) if more else ([], False)

    def any_arrived(self) -> bool:
        """Return whether a gradient has come to a parameter."""
        return bool(self._arrivals.arrived) if self._arrivals.on else bool(reducer.unfinished(self._reducer))

    def is_complete(self, effect: str) -> bool:
        """Return whether DDP has finished by itself in a backward with this effect."""
        if self._arrivals.on:
            arrived = len(self._arrivals.arrived) + len(self.left_out)
            if arrived == len(self._parameters):
                return not reducer.AT_ANY_TIME or not reducer.unfinished(self._reducer)
            return False
        if reducer.unfinished(self._reducer):
            return False
        # Nothing was marked as ready; where nothing is hidden, this rank has used no parameter at all.
        return effect is not autograd.UNSEEN

    # The end of a reduction.

    def check_finished(self, is_first: bool) -> None:
        """Called when DDP's own end has run, after parameters were marked; RuntimeError: it still waits."""
        # Before torch 2.1 to ask after the first reduction is a collective, which a rank that left nothing out does not
        # run. There all parameters have arrived or are marked: see is_complete.
        if (reducer.AT_ANY_TIME or not is_first) and reducer.unfinished(self._reducer):
            raise RuntimeError(NOT_FINALIZED)

    def reduced(self) -> None:
        """Record that a reduction has ended."""
        self._is_hidden = self._arrivals.hides()

    def leaves_out(self) -> bool:
        """Return whether something got no gradient in any backward of the step so far."""
        return not self._is_unseen and self._absent.includes(self.left_out)

    def _known(self) -> FrozenSet[int]:
        """Return those that all ranks have left out, as each of them knows: they skip the same layers (LayerDrop)."""
        skipped = SKIPPED.of(self._model)
        return frozenset() if skipped is None else skipped.parameters

    def unused(self) -> List[int]:
        """Return those that this rank has not used since the reduction before: not under ``no_sync`` either."""
        if self._is_unseen:
            return []
        used = self._arrivals.local
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
        self._absent.reduced(() if self._is_hidden else self.left_out, zeros)
        # Keep no reference to gradients that the loop may drop.
        self._arrivals.left_out = dict.fromkeys(self.left_out)
        self._arrivals.reduced()


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


class UnusedReport:
    """The parameters without a gradient in all backwards of the step so far."""

    def __init__(self, model: ddp.Wrapped) -> None:
        self._model = model
        self._numbers: Optional[FrozenSet[int]] = None
        self._zeros = self._reported = False

    def none(self) -> None:
        """Record that a reduction has left nothing out."""
        self._numbers = frozenset()

    def includes(self, numbers: Iterable[int]) -> bool:
        """Return whether some of these were left out by the earlier backwards of the step, too."""
        return any(self._numbers is None or number in self._numbers for number in numbers)

    def reduced(self, numbers: Iterable[int], zeros: bool) -> None:
        """Record what a reduction has left out.

        Args:
            zeros: whether some of them had no gradient before, and have zeros now, since ranks could not exchange
                which of them no rank has used.
        """
        self._numbers = frozenset(n for n in numbers if self._numbers is None or n in self._numbers)
        self._zeros = zeros

    def step_ended(self) -> None:
        """Report it, in front of the next forward, where plain torch would have raised its error."""
        if self._numbers and not self._reported:
            self._reported = True
            self._report(sorted(self._numbers))
        self._numbers = None

    def _report(self, numbers: Iterable[int]) -> None:
        names = [self._model.names[number] for number in numbers]
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
