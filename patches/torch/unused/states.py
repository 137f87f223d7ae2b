"""The states of one model's reduction (docs/unused-parameters.md has the picture), and what others know of it."""

from __future__ import annotations

from typing import Any, Dict, Protocol, Sequence

from ..pipeline.model import Slot

# Nothing has been reduced yet, or the last backward did not belong to this model.
IDLE = "idle"
# A forward that is reduced has ended: DDP waits for gradients.
ARMED = "armed"
# A backward runs that trains the model, and its end will be noticed.
RUNNING = "running"
# A backward has ended, and the step has more of them.
PENDING = "pending"
# Gradients are averaged. One that still comes arms DDP again.
FINALIZED = "finalized"
# A forward under no_sync has followed: gradients stay on this rank until the next forward that is reduced.
LOCAL = "local"


class Backwards(Protocol):
    """The number of backwards in a step, see :mod:`.backward_count`."""

    may_wait: bool

    def use(self, reduction: Reduction) -> None: ...

    def explain(self) -> str: ...


class Reduction(Protocol):
    """The reduction of one model, see :class:`.finalizer.Finalizer`."""

    state: str
    left_to_torch: bool
    armed_at: int
    # Parameters that are left out of the reduction that runs -> the gradient that they had before it.
    left_out: Dict[int, Any]

    @property
    def parameters(self) -> Sequence[Any]: ...

    @property
    def backwards(self) -> Backwards: ...

    def output_reached(self, gradients: Any) -> None: ...

    def parameter_reached(self) -> None: ...

    def finalize_pending(self) -> None: ...

    def end(self) -> None: ...


# The reductions that ddpfix finalizes.
REDUCTION: Slot[Reduction] = Slot()
