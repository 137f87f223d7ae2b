"""Backwards that a program makes within the forward of the wrapper itself, for which it prepares DDP by hand.

Lightning's manual optimization does so: the training step, with the backward of a generator and then that of a
discriminator, is the wrapped module's forward, and ``prepare_for_backward`` is called before each of them. No output of
the wrapper leads to these gradients, so each such backward counts as a step: DDP is armed when it begins, and finalized
when it ends, if it waits for gradients then. One that leaves DDP without anything to wait for (nobody has prepared it)
stays this rank's own, as in plain torch.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Optional, Tuple

from ..internals import autograd, reducer
from .states import ARMED
from .transitions import FORWARD, UNPREPARED


class Within:
    """The backwards within forwards of one model, from the first one on."""

    def __init__(self, hooked: Any, wrapper: Any) -> None:
        self._hooked, self._wrapper = weakref.ref(hooked), weakref.ref(wrapper)

    def backward_begins(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Any]:
        """Called before each outermost backward; returns what :meth:`backward_ended` gets, None for others."""
        hooked: Any = self._hooked()
        if hooked is None or not hooked.inside:
            return None
        hooked.backwards.done = 0
        hooked.on(FORWARD)
        return hooked

    def backward_ended(self, hooked: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Called after such a backward, which has raised nothing."""
        if hooked.state is ARMED:
            # Its parameters had no hooks yet.
            if self.is_unfinished():
                hooked.backward_ended_unfinished(autograd.REACHES)
            else:
                hooked.on(UNPREPARED)
        hooked.backwards.done = 0

    def is_unfinished(self) -> bool:
        """Return whether DDP waits for gradients: it was prepared, and some have come."""
        wrapper = self._wrapper()
        return wrapper is not None and bool(reducer.unfinished(wrapper.reducer))
