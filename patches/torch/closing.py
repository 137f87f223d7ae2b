"""Closes DDP's reduction after a backward that left parameters out, without ``find_unused_parameters``.

DDP without the flag waits for every parameter's gradient. When backward has ended and DDP still waits, the parameters
whose hooks did not run are reported to its reducer as having none: it completes its buckets, with zeros, and averages.
That is a local act of each rank: nothing is agreed on, no graph is walked, and nothing at all happens in a step in
which every parameter was used (pytorch issue 90171 has asked for the like).

A loop may call backward again for a part of the graph that no output shows, and DDP then finishes by itself. So a model
is closed at first when its gradients are about to be used, which is when stock is bound to fail, or before a collective
that the loop calls itself. From then on (and at once, where the user has asked for it) it is closed at the end of
backward, and a gradient that comes after that is an error.
"""

from __future__ import annotations

import re
import weakref
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from torch.autograd import Variable

from . import silent
from .rehearsal import Arrivals

# torch names this many parameters at most, and then dots.
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)(\.\.\.)?")
Shared = Callable[[Sequence[int]], Sequence[int]]


class Closer:
    """One wrapped model: what is open of its reduction.

    Args:
        wrapper: the DistributedDataParallel module.
        parameters: its parameters, in the order of the reducer's own numbers.
        shared: which of some numbers belong to parameters that no rank has used since the last reduction.
        told: called with the numbers of parameters that were closed for the first time.
        at_once: whether to close after the first backward already.
    """

    def __init__(
        self,
        wrapper: Any,
        parameters: Sequence[Any],
        shared: Shared,
        told: Callable[[List[int]], None],
        at_once: bool = False,
    ) -> None:
        self._wrapper = weakref.ref(wrapper)
        self.parameters = parameters
        self.shared, self.told = shared, told
        self.waiting: List[weakref.ref[_Reached]] = []
        # Whether a callback is due at the end of the backward that runs now.
        self.due = False
        # Whether a backward has ended, and outputs are left that a later one may reach.
        self.open = False
        # Whether gradients were once about to be used while DDP still waited: stock would have failed.
        self.proven = at_once
        # Parameters that were closed since the last forward: what comes for them now is not averaged any more.
        self.closed: Set[int] = set()
        # Hooks on all parameters that were ever closed.
        self.hooks: Dict[int, Any] = {}
        # With an old torch, until the reducer has made its buckets anew in the forward after the first backward.
        self.arrivals: Optional[Arrivals] = None if silent.CAN_ASK else Arrivals(parameters)
        # Whether a backward that is reduced has ended.
        self._stepped = False
        # What no rank has used in the forwards before the next backward, if torch can be told early.
        self._known: FrozenSet[int] = frozenset()
        # Parameters that were reported before the backward has ended, and the gradients that they had.
        self._early: Dict[int, Any] = {}

    @property
    def reducer(self) -> Any:
        return self._wrapper().reducer  # type: ignore[union-attr]

    def forget(self) -> None:
        """A forward that will be reduced begins: what is open from before is left to torch, which raises its error."""
        self.due = self.open = False
        self._known = frozenset()
        self._early.clear()
        self.closed.clear()
        self.waiting = [known for known in self.waiting if known() is not None]

    def watch(self, tensors: Sequence[Any], unused: FrozenSet[int]) -> None:
        """Have backward noticed at the outputs of a forward that will be reduced.

        Args:
            tensors: the outputs.
            unused: numbers of the parameters that no rank has used, as far as it is known already.
        """
        if self.arrivals is not None and self._stepped:
            self.arrivals.end()
            self.arrivals = None
        if self.arrivals is not None:
            self.arrivals.begin()
        # In the first step DDP takes the order of its buckets from that in which parameters are reported.
        if silent.AT_ANY_TIME and self._stepped:
            self._known = unused
        for tensor in tensors:
            # A leaf (a parameter, or an input) would keep the hook.
            if tensor.requires_grad and tensor.grad_fn is not None:
                reached = _Reached(self)
                tensor.register_hook(reached)
                self.waiting.append(weakref.ref(reached))

    def backward_runs(self) -> None:
        """A gradient has come to an output. Called within the outermost backward, also under checkpointing."""
        if self.closed:
            raise RuntimeError(TOO_LATE)
        if not self.due:
            self.due = True
            Variable._execution_engine.queue_callback(self._almost_ended)
            # DDP communicates its buckets one after the other: what is left out must not hold up those behind it.
            known, self._known = self._known, frozenset()
            for index in sorted(known, reverse=True):
                self._reported(index)

    def _reported(self, index: int) -> None:
        self._early[index] = self.parameters[index].grad
        silent.report(self.reducer, self.parameters, [index])

    def _almost_ended(self) -> None:
        # DDP may have queued its own end behind this one; the next callback comes after that.
        Variable._execution_engine.queue_callback(self._ended)

    def _ended(self) -> None:
        self.due = False
        self._stepped = True
        self.waiting = [known for known in self.waiting if _waits(known())]
        # What was reported before stock would have failed on.
        self.proven = self.proven or bool(self._early)
        if STEPPING or (self.proven and not self.waiting):
            self.close()
        else:
            self.open = True
            OPEN.add(self)

    def complete(self) -> bool:
        """Whether no output is left that a backward may still reach."""
        return not any(_waits(known()) for known in self.waiting)

    def close_now(self) -> None:
        """Somebody is about to use the gradients: outputs that were not reached are not part of any loss."""
        if self.open and self._wrapper() is not None:
            silent.within_backward(self.close)

    def close(self) -> None:
        """Report what the reducer still waits for; called within a backward, or a callback of one."""
        self.open = False
        self.waiting = []
        before, self._early = self._early, {}
        new = [index for index in before if index not in self.hooks]
        self.closed.update(before)
        missing, more = self.missing()
        while missing:
            self.proven = True
            before.update((index, self.parameters[index].grad) for index in self._kept(missing))
            silent.report(self.reducer, self.parameters, missing)
            self.closed.update(missing)
            new += [index for index in missing if index not in self.hooks]
            last = missing
            # torch names a hundred at a time.
            missing, more = self.missing() if more else ([], False)
            if missing == last:
                break
        if self.closed:
            # DDP has queued its end behind this callback.
            Variable._execution_engine.queue_callback(lambda: self._has_closed(before))
            CLOSED.add(self)
        if new:
            for index in new:
                self.hooks[index] = self._guard(index)
            self.told(new)

    def _guard(self, index: int) -> Any:
        """A hook on a parameter that raises if a gradient comes for it after it was closed; None if it takes none."""
        parameter = self.parameters[index]
        if not parameter.requires_grad:
            return None

        def came(gradient: Any) -> None:
            if index in self.closed:
                raise RuntimeError(TOO_LATE)

        return parameter.register_hook(came)

    def end(self) -> None:
        """Undo: nothing is left on the model."""
        if self.arrivals is not None:
            self.arrivals.end()
        for handle in self.hooks.values():
            if handle is not None:
                handle.remove()
        self.hooks.clear()

    def missing(self) -> Tuple[List[int], bool]:
        """The numbers of parameters that the reducer waits for, and whether there are more of them."""
        if self.arrivals is not None and self.arrivals.complete():
            return [], False
        named = _INDICES.search(silent.unfinished(self.reducer))
        if named is None:
            return [], False
        return [int(word) for word in named.group(1).split()], named.group(2) is not None

    def _kept(self, missing: List[int]) -> List[int]:
        """Parameters whose gradients stay what they are: nobody used them, or they take none any more."""
        frozen = [index for index in missing if not self.parameters[index].requires_grad]
        return [*frozen, *(index for index in self.shared(missing) if index not in frozen)]

    def _has_closed(self, before: Dict[int, Any]) -> None:
        for index, gradient in before.items():
            self.parameters[index].grad = gradient
        if silent.CAN_ASK and silent.unfinished(self.reducer):
            raise RuntimeError(NOT_CLOSED)


# Models with an open reduction, until the next use of gradients, and those that were closed since their last forward.
OPEN: weakref.WeakSet[Closer] = weakref.WeakSet()
CLOSED: weakref.WeakSet[Closer] = weakref.WeakSet()
# Optimizers (by identity) whose step runs: what a backward leaves in there (a closure's) is used right after it.
STEPPING: Set[int] = set()
NOT_CLOSED = (
    "ddpfix: DDP still waits for gradients after those that are missing were reported, so they are not averaged. Please"
    " report this with the versions of torch and ddpfix; DDPFIX_UNUSED=find does without."
)
TOO_LATE = (
    "ddpfix: a gradient comes after the parameters that had none were reduced, and would not be averaged. Add up the"
    " losses and call backward once, or keep all backwards but the last in no_sync() (DDPFIX_UNUSED=find or off does"
    " without this)."
)


class _Reached:
    """A hook on an output. It lives as long as the graph behind the output does."""

    __slots__ = ("__weakref__", "closer", "done")

    def __init__(self, closer: Closer) -> None:
        self.closer = closer
        self.done = False

    def __call__(self, gradient: Any) -> None:
        self.done = True
        self.closer.backward_runs()


def _waits(reached: Optional[_Reached]) -> bool:
    return reached is not None and not reached.done
