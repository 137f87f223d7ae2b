"""The states of one model's reduction (docs/unused-parameters.md has the picture)."""

from __future__ import annotations

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
