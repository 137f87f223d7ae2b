"""Which gradients come to the parameters of one model, noticed where autograd adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence

from . import engine_view
from .states import RUNNING

if TYPE_CHECKING:
    from .finalizer import Finalizer

# How often the engine's word is compared with what came before it is relied on.
_COMPARED = 2


class Arrivals:
    """Hooks on the nodes at which gradients arrive; they cost some tenths of a microsecond each.

    They are there in the first steps of every model, and stay on one that leaves parameters out: a gradient that comes
    after the reduction has to be noticed, whichever way its backward takes.

    Args:
        finalizer: told of a gradient that comes in a backward of which it does not know.
        parameters: in DDP's order.
    """

    def __init__(self, finalizer: Finalizer, parameters: Sequence[Any]) -> None:
        self._finalizer = finalizer
        self._nodes = engine_view.accumulators(parameters)
        self.view = engine_view.View(parameters, self._nodes)
        self._hooks: List[Any] = []
        self._over = False
        # The numbers of the parameters whose gradients have come since DDP was armed.
        self.came: Dict[int, None] = {}
        # Whether one has come a second time in the same backward.
        self.again = False
        # What the engine will not reach, until it is compared with what came; and whether it was wrong once.
        self._expected: Sequence[int] = ()
        self._compared = 0
        self._hidden = False
        self.go_on()

    @property
    def on(self) -> bool:
        return bool(self._hooks)

    def go_on(self) -> None:
        """Notice what comes from here on."""
        if not self._hooks and not self._over:
            self._hooks = [node.register_prehook(self._noticing(n)) for n, node in enumerate(self._nodes)]

    def stop(self, for_good: bool = False) -> None:
        self._over = self._over or for_good
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.came = {}

    def forget(self) -> None:
        """DDP is armed: what has come so far is reduced."""
        self._compare()
        self.came, self.again = {}, False

    def missing(self) -> List[int]:
        """The numbers of the parameters whose gradients have not come."""
        return [number for number in range(len(self._nodes)) if number not in self.came]

    def _noticing(self, number: int) -> Callable[[Any], None]:
        finalizer = self._finalizer

        def noticing(gradients: Any) -> None:
            if finalizer.state is not RUNNING:
                finalizer.passed_by()
            if finalizer.state is RUNNING and number not in finalizer.left_out:
                self.again = self.again or number in self.came
                self.came[number] = None

        return noticing

    def to_be_left_out(self, at_once: bool) -> List[int]:
        """What the backward that begins now will not reach, and no earlier one has; [] as long as that is not sure.

        Args:
            at_once: whether it is relied on before it has been compared with what came, if nothing can be hidden.
        """
        if self._hidden or not self.on or engine_view.hides_since(self._finalizer.armed_at):
            return []
        found = [number for number in self.view.left_out() if number not in self.came]
        if self._compared >= _COMPARED:
            return found
        self._expected = found
        return found if at_once and found and not engine_view.may_hide() else []

    def _compare(self) -> None:
        """The engine does not see what a reentrant checkpoint hides; once wrong, it is not asked again."""
        if self._expected:
            self._compared += 1
            self._hidden = self._hidden or any(number in self.came for number in self._expected)
            self._expected = ()
