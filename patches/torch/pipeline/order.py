"""Wrappers of torch that several patches share, and the written order of those that do."""

from __future__ import annotations

from typing import Callable, Dict, Generic, List, Optional, Tuple, TypeVar

from ddpfix.patching.site import PatchError, Site

T = TypeVar("T")

# Where each stage of :mod:`.ddp` stands, outermost first: that one sees the arguments first, and a forward's end last.
ORDER = (
    "trace",  # Times all that the other stages do as well, as a part of the forward.
    "clock",  # Counts every training forward, also one in which a later stage fails.
    "agreement",  # Must come before every stage that communicates: all ranks have to be present.
    "flag",  # Every later stage depends on whether DDP looks for unused parameters.
    "skipped_layers",  # Records what a forward has skipped, for the end of its backward.
    "accumulation",  # Tells the steps of this model which micro-batches belong together.
    "divergence",  # Learns of the user's communication hook, and when a forward has ended.
    "bypass",  # Looks at the finished wrapper only, and changes nothing of it.
    "finalize",  # Reads the output of DDP and its reducer, which no later stage changes.
    "reentrant",  # Notes where a step begins, in models that the stages above have the flag set for.
    "buffers",  # Notes which forwards wait for a backward, which no stage above changes.
    "diagnosis",  # Innermost: it completes the error that DDP raises.
)
# The stages that read DDP's flag or reducer when a model is built.
REDUCER = ("finalize", "diagnosis")
# Who follows the process group, the first one told first that it is up, and last that it ends.
GROUP = (
    "agreement",  # The other ranks of a model wait for a rank that has left its mark.
    "failures",  # Says how the program has ended, after the one whose reports it may need.
    "hang",  # Looks at no rank that ends.
    "divergence",  # Says how a run has trained, before it is told how the run has ended.
    "init_file",  # Innermost: it watches torch's own call.
)
# Who is called at the steps of optimizers, before and after them.
STEPS = (
    "trace",  # The time of a step has what the others do before it, and not what they do after it.
    "divergence",  # Looks at what the step before has left.
    "finalize",  # Innermost: it reduces gradients that wait, and a closure's.
)
# Whose models have backwards followed.
BACKWARD = (
    "finalize",  # Ends the reduction of a step that repeats the previous one.
    "diagnosis",  # Completes the error that a backward, or the stage above, has raised.
)


class Shared(Generic[T]):
    """The subscribers of one wrapper: the first one puts it on, and it is taken off with the last.

    Their places have a written order.
    """

    def __init__(self, name: str, order: Tuple[str, ...]) -> None:
        self._name, self._order = name, order
        self._at: Dict[str, T] = {}
        self._own: Optional[Site] = None
        # In the written order; a new tuple after each change, so that a loop over it may change it.
        self.subscribers: Tuple[T, ...] = ()

    def join(self, site: Site, place: str, subscriber: T, put_on: Callable[[Site], None]) -> None:
        """Subscribe until undo; a wrapper that ``put_on`` fails to put on leaves nothing. PatchError: no such place."""
        if place not in self._order or place in self._at:
            why = (
                "taken" if place in self._at else f"none of {', '.join(self._order)} (patches/torch/pipeline/order.py)"
            )
            raise PatchError(f"the place {place} of {self._name} is {why}")
        if self._own is None:
            own = Site(self._name, site.settings, site.activation)
            try:
                put_on(own)
            except Exception:
                own.undo()
                raise
            self._own = own
        site.parts.append(self._own)
        self._at[place] = subscriber
        self._arrange()
        site.at_undo(lambda: self._leave(place))

    def _leave(self, place: str) -> List[str]:
        del self._at[place]
        self._arrange()
        own = self._own
        if self._at or own is None:
            return []
        self._own = None
        return own.undo()

    def _arrange(self) -> None:
        self.subscribers = tuple(self._at[place] for place in self._order if place in self._at)
