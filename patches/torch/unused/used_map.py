"""Which parameters no rank has used: the ranks of a model exchange what each has left out of a reduction.

With ``find_unused_parameters=True`` a parameter that no rank has used keeps the gradient that it had, so that weight
decay, momentum and Adam's moments do not touch it. DDP knows it by a bitmap, which it reduces in each step. Here the
ranks reduce such a bitmap from the first reduction on of which some rank leaves something out. That rank tells the
others through the process group's store before it takes part in the reduction; so whoever has ended this reduction can
find it there, and all ranks begin with the same one. They look for it after their first reductions. Later nobody looks,
and nothing is added to a step: the rank asks the threads of the others first (:mod:`ddpfix.exchange.proposals`).
"""

from __future__ import annotations

import sys
import weakref
from typing import AbstractSet, Any, Collection, Iterator, List, Optional, Tuple

import torch

from ddpfix import devices
from ddpfix.exchange import proposals, roll_call

from ..internals import modes, process_groups
from ..pipeline import ddp
from ..pipeline.backward import Backwards
from .arrivals import Arrivals
from .states import Reduction

NEVER = sys.maxsize
# After so many reductions ranks look into the store: a part that idles mostly does so from the beginning.
_LOOKS = 4


class UsedMap:
    """The exchanges of one model, each after a reduction.

    Attributes:
        next: the first reduction, counted from 1, after which this rank looks or exchanges, as after all later ones.
        is_on: whether ranks exchange now.
        is_due: whether they are still to do so after the last reduction.
        model: whose thread does it; its number orders the exchanges of several models.
    """

    def __init__(self, model: ddp.Wrapped, reduction: Reduction, arrivals: Arrivals, backwards: Backwards) -> None:
        # Not its group, which the program may destroy before this one goes.
        self.model = model
        self._reduction, self._arrivals, self._backwards = reduction, arrivals, backwards
        self._is_alone = model.wrapper.process_group.size() == 1
        together = model.exchanges and not self._is_alone
        self._topic = f"used/{model.number}" if together else ""
        self.next = 1 if together else NEVER
        # The second: whether they have begun to exchange in this step; of several backwards each may use other
        # parameters, so that the step leaves nothing out.
        self.is_on = self._is_new = False
        self.is_due = False
        # The reduction from which on another rank asks for exchanges, and the one of which this rank has told others.
        self._asked = self._told = 0
        if together:
            own = weakref.ref(self)
            proposals.listen(self._topic, lambda number: _listen(own, number))

    @property
    def _group(self) -> Any:
        return self.model.wrapper.process_group

    def listen(self, number: int) -> None:
        """Read after this reduction what the rank that asks has decided; called in another thread."""
        self._asked = number
        if self.next == NEVER:
            self.next = number

    def ask(self) -> None:
        """Begin to exchange, on all ranks, before this one leaves something out of the reduction that runs."""
        number = self._reduction.reductions + 1
        if self.is_on or not self._topic:
            return
        if number <= _LOOKS:
            proposals.publish(self._topic, number)
            self._told = number
        elif proposals.ask(self._topic, number, process_groups.ranks_of(self._group), roll_call.limit_of(self._group)):
            self._begin()
        else:
            self.end()

    def _begin(self) -> None:
        self.is_on, self._is_new, self.next = True, True, 0

    def _pause(self, number: int) -> None:
        """Exchange nothing until a rank leaves something out of a later reduction."""
        self.is_on, self.next = False, number + 1
        if number >= _LOOKS:
            self.next = NEVER
            # A rank may have asked since the line above, or before.
            self.next = self._asked if self._asked > number else NEVER

    def step_begins(self) -> None:
        """Another step begins: if ranks exchange now, they go on."""
        self._is_new = False

    # After a reduction.

    def reduced(self) -> None:
        """A reduction has ended: exchange, if there is anything to say, when the backward has ended as a whole."""
        if not self._arrivals.left_out and self._reduction.reductions < self.next:
            self._arrivals.complete()
            return
        self.is_due = True
        self._backwards.settle_after(self)

    def settle(self) -> None:
        """Exchange with the other ranks what the last reduction has left out, and restore what no rank has used."""
        self.is_due = False
        self._arrivals.settle(self._exchange(self._arrivals.unused(), self._arrivals.leaves_out()))
        self._reduction.settled()

    def joined(self) -> None:
        """Take part in a reduction of the others, after this rank has run out of batches under ``join()``."""
        self._reduction.reductions += 1
        if self._reduction.reductions >= self.next:
            self._exchange(range(len(self.model.parameters)), False)

    def _exchange(self, unused: Collection[int], goes_on: bool) -> Optional[AbstractSet[int]]:
        """Return the parameters that no rank has used; None where ranks cannot know."""
        number = self._reduction.reductions
        if self._is_alone:
            return frozenset(unused)
        if number < self.next or devices.is_capturing():
            return None
        if not self.is_on:
            if not self._has_begun(number):
                self._pause(number)
                return None
            self._begin()
        with modes.hidden():
            counts = self._reduce(unused, goes_on)
            values: List[int] = counts.tolist() if unused or self._is_new else []
        if self._told:
            # All ranks have found it, since the host has the sum of all.
            proposals.forget(self._topic, self._told)
            self._told = 0
        if self._is_new and not values[-1]:
            self._pause(number)
        return frozenset(each for each in unused if not values[each])

    def _has_begun(self, number: int) -> bool:
        """Return whether a rank has left something out of this reduction."""
        if number > _LOOKS:
            return proposals.answer(self._topic, self.next)
        return proposals.is_told(self._topic, number)

    def _reduce(self, unused: Collection[int], goes_on: bool) -> Any:
        """Return how many ranks have used each parameter, and how many want to go on with exchanges."""
        parameters = self.model.parameters
        counts = torch.ones(len(parameters) + 1, dtype=torch.int32, device=parameters[0].device)
        # Slices are filled without a copy from the host, for which it would wait.
        for begin, end in _runs(unused):
            counts[begin:end].zero_()
        if not goes_on:
            counts[-1:].zero_()
        self._group.allreduce([counts]).wait()
        return counts

    def end(self) -> None:
        """Exchange nothing any more, on all ranks alike."""
        self.next, self.is_on = NEVER, False
        proposals.listen(self._topic, None)
        self._topic = ""


def _listen(own: weakref.ref[UsedMap], number: int) -> None:
    known = own()
    if known is not None:
        known.listen(number)


def _runs(numbers: Collection[int]) -> Iterator[Tuple[int, int]]:
    """Yield the beginnings and ends of runs of consecutive numbers."""
    begin = end = -1
    for number in sorted(numbers):
        if number != end:
            if end > begin:
                yield begin, end
            begin = number
        end = number + 1
    if end > begin:
        yield begin, end
