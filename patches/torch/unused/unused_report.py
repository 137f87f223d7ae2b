"""Reports once which parameters of a model got no gradient in a step that plain torch would end with an error."""

from __future__ import annotations

from typing import FrozenSet, Iterable, Optional

from ddpfix.models.parameter_names import in_short
from ddpfix.ranks.store import lowest_rank

from ..pipeline import ddp


class Absent:
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
            "ddpfix gives them a zero gradient, so weight decay and momentum still update them. Set"
            " DDPFIX_UNUSED=find to leave them untouched"
            if self._zeros
            else "ddpfix trains on without them, as find_unused_parameters=True does"
        )
        lowest_rank.report(
            f"absent/{self._model.number}",
            f"{count} of {type(self._model.wrapper.module).__name__} ({in_short(names)}) got no gradient in a step."
            f" Plain DDP would raise an error in the next one; {cure}.",
        )
