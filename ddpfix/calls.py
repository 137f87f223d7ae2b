"""One call of a function that draws: where its numbers come from, and what they decided."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, List, Optional

from ddpfix import sync

# The call whose function is running here; draws outside of one are the toolkit's own.
CURRENT: ContextVar[Optional[Call]] = ContextVar("ddpfix_call", default=None)


class Draw(float):
    """A number in [0, 1) that remembers what it decided: toolkits skip if it is below the rate, or keep if above."""

    __slots__ = ("call", "index")
    call: Call
    index: int

    def __lt__(self, rate: Any) -> bool:
        return self._note(float(self) < rate)

    def __le__(self, rate: Any) -> bool:
        return self._note(float(self) <= rate)

    def __gt__(self, rate: Any) -> bool:
        return not self._note(not float(self) > rate)

    def __ge__(self, rate: Any) -> bool:
        return not self._note(not float(self) >= rate)

    def _note(self, skip: Any) -> bool:
        if skip:
            self.call.skipped.append(self.index)
        return bool(skip)


class Call:
    """One training call of a function that draws: where its numbers come from and what they decided.

    ``base`` is a stream of :mod:`ddpfix.sync`, or None to keep the stock numbers and only watch; ``never`` answers so
    that nothing is skipped.
    """

    __slots__ = ("base", "drawn", "never", "skipped")

    def __init__(self, base: Optional[int], never: bool = False) -> None:
        self.base = base
        self.never = never
        self.drawn = 0
        self.skipped: List[int] = []

    def answer(self, stock: Any) -> Draw:
        index = self.drawn
        self.drawn = index + 1
        if self.never:
            # Above every rate, whichever way round the toolkit compares.
            draw = Draw(2.0)
        elif self.base is None:
            draw = Draw(stock)
        else:
            draw = Draw(sync.uniform(self.base, index))
        draw.call, draw.index = self, index
        return draw

    def close(self, module: Any) -> None:
        """Called when the call has ended, whether it returned or raised."""


class StepCall(Call):
    """A call within a step: when it ends, the step learns which layers it skipped."""

    __slots__ = ("name", "number", "step")

    def __init__(self, base: int, step: sync.Step, name: str, number: int) -> None:
        super().__init__(base)
        self.step, self.name, self.number = step, name, number

    def close(self, module: Any) -> None:
        if self.skipped:
            first = first_layer(module, self)
            self.step.skipped.extend(sync.Skip(self.name, self.number, first + index) for index in self.skipped)


def first_layer(module: Any, call: Call) -> int:
    """The layer that the call's first draw was for: WavLM draws nothing for its first layer (transformers 5)."""
    return max(0, layer_count(module) - call.drawn)


def layer_count(module: Any) -> int:
    """How many layers a module has: its list ``layers``, or the longest list of modules in it."""
    layers = getattr(module, "layers", None)
    if layers is not None:
        return len(layers)
    return max((len(child) for child in module.children() if type(child).__name__ == "ModuleList"), default=0)
