"""The record of one model under DDP, and the slots in which features keep what they know of it."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Generic, List, Optional, Tuple, TypeVar, cast

from ddpfix.exchange import roll_call
from ddpfix.layerdrop import training
from ddpfix.models import internals
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.dynamo import uncompiled

from ..internals import process_groups
from ..internals.wrapper import inner, parameters_of
from .order import ORDER

T = TypeVar("T")
Inputs = Callable[[Any, Any], None]
Before = Callable[[], None]
After = Callable[[Any], None]
Failed = Callable[[BaseException], None]


class Wrapped:
    """The record of one model under DDP.

    Attributes:
        parameters: the parameters that DDP reduces, in the order of the reducer's own numbers, as they were at
            construction.
        holds: whether all micro-batches of an accumulation window skip the same layers.
        flag_is_ours: whether find_unused_parameters=True was set by ddpfix and by nobody else.
        averages: whether all ranks have the same gradients after a reduction; not known under a hook of the user's.
        exchanges: whether the ranks have agreed to exchange which parameters they have used.
        number: the name of this model in messages between the ranks of its group; "" for a copy, which some ranks may
            have alone, until all ranks need one (:meth:`name_together`).
        thread: the one that trains it: that of its last forward with gradients enabled.
        slots: what features keep of it, see :class:`Slot`.
    """

    def __init__(self, wrapper: Any, number: str = "", parameters: Optional[List[Any]] = None) -> None:
        # A parameter that is replaced later stays in DDP's list.
        self.parameters = parameters_of(wrapper) if parameters is None else parameters
        self.slots: Dict[Slot[Any], Any] = {}
        # A model's memory is free when its wrapper goes, without the collector: cycles of features keep no parameter.
        self._wrapper = weakref.ref(wrapper, functools.partial(_release, self.parameters, self.slots))
        named = {id(parameter): name for name, parameter in internals.named_parameters(inner(wrapper)).items()}
        self.names: List[str] = [named.get(id(parameter), "?") for parameter in self.parameters]
        self.number = number
        self.holds = False
        self.flag_is_ours = False
        self.averages = True
        self.thread = threading.get_ident()
        self.exchanges = False
        # Called with the positional and the keyword arguments of each forward that has gradients enabled.
        self.inputs: Tuple[Inputs, ...] = ()
        self.before: Tuple[Before, ...] = ()
        self.after: Tuple[After, ...] = ()
        self.failed: Tuple[Failed, ...] = ()
        self._attached: Dict[str, Tuple[Optional[Before], Optional[After], Optional[Failed]]] = {}

    @property
    def wrapper(self) -> Any:
        return self._wrapper()

    def name_together(self) -> str:
        """Its name, from a place to which all ranks of its group come in the same order."""
        if not self.number:
            group = process_groups.members_of(self.wrapper.process_group).name
            self.number = roll_call.name_of_next(group, "copy")
        return self.number

    def attach(
        self,
        place: str,
        before: Optional[Before] = None,
        after: Optional[After] = None,
        failed: Optional[Failed] = None,
    ) -> None:
        """Call these before, after, and at an error of each forward that has gradients enabled."""
        self._attached[place] = (before, after, failed)
        self._arrange()

    def detach(self, place: str) -> None:
        if self._attached.pop(place, None) is not None:
            self._arrange()

    def _arrange(self) -> None:
        attached = [self._attached[place] for place in ORDER if place in self._attached]
        self.before = tuple(uncompiled(before) for before, _, _ in attached if before is not None)
        self.after = tuple(uncompiled(after) for _, after, _ in reversed(attached) if after is not None)
        self.failed = tuple(failed for _, _, failed in reversed(attached) if failed is not None)


def _release(parameters: List[Any], slots: Dict[Slot[Any], Any], gone: Any) -> None:
    parameters.clear()
    slots.clear()


class Slot(Generic[T]):
    """What one feature keeps of each model under DDP; it goes with the model's record."""

    def of(self, model: Wrapped) -> Optional[T]:
        """Return what it has of a model, or None."""
        return cast("Optional[T]", model.slots.get(self))

    def put(self, model: Wrapped, value: T) -> T:
        """Keep this of a model; return it."""
        model.slots[self] = value
        return value

    def clear(self, model: Wrapped) -> Optional[T]:
        """Forget what it has of a model; return it."""
        return cast("Optional[T]", model.slots.pop(self, None))


# None for models that were wrapped before ddpfix was activated, or over a group that torch has not made: their ranks
# agreed on nothing, so they stay unchanged.
MODELS: ByIdentity[Optional[Wrapped]] = ByIdentity()


def of(wrapper: Any) -> Optional[Wrapped]:
    """Return the record of a model under DDP; None if it was wrapped without ddpfix."""
    return MODELS.get(wrapper)


def known() -> List[Wrapped]:
    """Return the records of all models under DDP."""
    return [model for model in MODELS.values() if model is not None]


def of_replica(replica: training.Replica) -> Optional[Wrapped]:
    """Return the record of the model that a replica is of; None for a sharded one."""
    return next((model for model in known() if training.replica_of(model.wrapper) is replica), None)


def replica(model: Wrapped) -> Optional[training.Replica]:
    """Return the agreed seed and the steps of a model; None if its ranks have not agreed."""
    return training.replica_of(model.wrapper)


def until_destroyed(wrapper: Any, end: Callable[[], None]) -> weakref.ref[Any]:
    """Return a reference to a wrapper; ``end()`` is called when the wrapper is destroyed."""
    return weakref.ref(wrapper, functools.partial(_destroyed, sys.is_finalizing, end))


def _destroyed(is_finalizing: Callable[[], bool], end: Callable[[], None], reference: Any) -> None:
    """End what the wrapper had; at the end of the interpreter everything else may be destroyed too."""
    if not is_finalizing():
        end()
