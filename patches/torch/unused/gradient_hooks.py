"""Records which parameters of one model get gradients, at the nodes where autograd accumulates them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

from ddpfix.models import graph

from ..internals import autograd
from .states import RUNNING, Reduction

# How often the engine's answer is compared with the gradients that came before it is relied on.
_COMPARED = 2


class GradientHooks:
    """Hooks on the nodes at which gradients arrive; they cost some microseconds each, also after they were removed.

    A model has them where it leaves parameters out, because a gradient that comes after the reduction has to be noticed
    whatever path its backward takes; and in its first steps where backwards are not checked at their end.

    Args:
        reduction: its ``parameter_reached`` is called for a gradient of a backward that it does not know of.
        parameters: in DDP's order.
    """

    def __init__(self, reduction: Reduction, parameters: Sequence[Any]) -> None:
        self._reduction, self._parameters = reduction, parameters
        self.nodes = graph.accumulators(parameters)
        self.view = autograd.View(parameters, self.nodes)
        self._hooks: List[Any] = []
        self._over = self._stays = False
        # The numbers of the parameters whose gradients have come since DDP was armed.
        self.arrived: Dict[int, None] = {}
        # Parameters that are left out of the reduction that runs -> the gradient that they had before it. It is here,
        # and not in :class:`.ready_marks.Marks`, because each gradient asks for it.
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

    def reduced(self) -> None:
        """Record from here on what comes in backwards that are not reduced."""
        self.local = {} if self._hooks else None

    def forget(self) -> None:
        """Forget the recorded gradients: DDP is armed, and what has come so far is reduced."""
        self._compare()
        self.arrived, self.arrived_twice = {}, False

    def all_local(self) -> None:
        """Record that this rank has its own gradients again, which have to be averaged."""
        if self.local is not None:
            self.local = {n: None for n, p in enumerate(self._parameters) if p.grad is not None}

    def missing(self) -> List[int]:
        """Return the numbers of the parameters whose gradients have not come."""
        return [number for number in range(len(self.nodes)) if number not in self.arrived]

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
