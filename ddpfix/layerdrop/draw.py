"""One call of a function that draws: where its numbers come from, and what they decided."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, List, Optional, Sequence

from ddpfix.layerdrop import schedule, training

# The call whose function is running here; draws outside of one are the toolkit's own.
CURRENT: ContextVar[Optional[Call]] = ContextVar("ddpfix_call", default=None)


class Draw(float):
    """A number in [0, 1) that records what it decided: toolkits skip if it is below the rate, or keep if above."""

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

    ``base`` is a stream of :mod:`ddpfix.layerdrop.schedule`, or None to keep the original numbers and only record;
    with ``never``, no layer is skipped. ``vectors``: a vector of numbers decides about all layers at once
    (elsewhere it is noise).
    """

    __slots__ = ("base", "drawn", "listed", "never", "skipped", "vectors", "whole")

    def __init__(self, base: Optional[int], never: bool = False) -> None:
        self.base = base
        self.never = never
        self.vectors = False
        self.drawn = 0
        # Whether the numbers of all layers were drawn at once.
        self.listed = False
        # Whether all layers run, whatever the draws say (a sharded model, see code_copy.py).
        self.whole = False
        self.skipped: List[int] = []

    def answer(self, original: Any) -> Draw:
        index = self.drawn
        self.drawn = index + 1
        return self.draw(self.value(index, original), index)

    def value(self, index: int, original: Any) -> float:
        """The number that replaces the draw ``index``."""
        if self.never:
            # Above every rate, whichever way round the toolkit compares.
            return 2.0
        return float(original) if self.base is None else schedule.uniform(self.base, index)

    def draw(self, value: float, index: int) -> Draw:
        draw = Draw(value)
        draw.call, draw.index = self, index
        return draw

    def answer_all(self, original: Any) -> Draws:
        """Replace a vector of numbers, one a layer; the vector's own numbers are overwritten."""
        first = self.drawn
        self.drawn += len(original)
        self.listed = True
        for index in range(len(original)):
            original[index] = self.value(first + index, original[index])
        return Draws(self, original, first)

    def ended(self, module: Any, rates: Sequence[str]) -> None:
        """Called when a call that skipped something has ended, whether it returned or raised.

        Args:
            module: the module whose function it was.
            rates: the names of the rates above 0 that it read, in the order in which it draws for them.
        """


class Draws:
    """A vector of numbers, of which single ones are read by index and record what they decided."""

    __slots__ = ("_call", "_first", "_values")

    def __init__(self, call: Call, values: Any, first: int) -> None:
        self._call, self._values, self._first = call, values, first

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        value = self._values[index]
        if not isinstance(index, int):
            return value
        return self._call.draw(float(value), self._first + index % len(self._values))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._values, name)

    def __lt__(self, rate: Any) -> Any:
        return self._values < rate

    def __le__(self, rate: Any) -> Any:
        return self._values <= rate

    def __gt__(self, rate: Any) -> Any:
        return self._values > rate

    def __ge__(self, rate: Any) -> Any:
        return self._values >= rate


class StepCall(Call):
    """A call within a step: when it ends, it adds the layers that it skipped to the step."""

    __slots__ = ("name", "number", "step")

    def __init__(self, base: int, step: training.Step, name: str, number: int) -> None:
        super().__init__(base)
        self.step, self.name, self.number = step, name, number

    def ended(self, module: Any, rates: Sequence[str]) -> None:
        if self.whole:
            return
        if self.listed or layer_count(module) or self.drawn > len(rates):
            first = 0 if self.listed else first_layer(module, self)
            skips = [training.Skip(self.name, self.number, first + index) for index in self.skipped]
        else:
            skips = [self._own(rates[index]) for index in self.skipped]
        self.step.skipped.extend(skips)

    def _own(self, rate: str) -> training.Skip:
        """The skip of a module that is itself a layer, and draws for itself or a branch; its index is from a list."""
        holder, _, place = self.name.rpartition(".")
        part = rate.partition("_drop")[0] if "branch" in rate else ""
        if place.isdigit():
            return training.Skip(holder, self.number, int(place), part)
        return training.Skip(self.name, self.number, 0, part)


def first_layer(module: Any, call: Call) -> int:
    """The layer that the call's first draw was for: WavLM draws nothing for its first layer (transformers 5)."""
    return max(0, layer_count(module) - call.drawn)


def layer_count(module: Any) -> int:
    """How many layers a module has: its list ``layers``, or the longest list of modules in it."""
    layers = getattr(module, "layers", None)
    if layers is not None:
        return len(layers)
    return max((len(child) for child in module.children() if type(child).__name__ == "ModuleList"), default=0)
