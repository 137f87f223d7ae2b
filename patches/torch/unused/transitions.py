"""The transitions of one model's reduction: ``(state, event) -> (action, state)``, and nothing for any other pair.

docs/unused-parameters.md prints this table. An action is a method of :class:`.finalizer.Finalizer`; it is called in the
new state.
"""

from __future__ import annotations

from typing import Dict, Tuple

from .states import ARMED, FINALIZED, IDLE, LOCAL, PENDING, RUNNING

# Events. A forward has ended whose gradients are reduced, or one under no_sync.
FORWARD, LOCAL_FORWARD = "forward that is reduced", "forward under no_sync"
# The first gradient of a backward that trains the model has come to an output, or to a parameter.
GRADIENT = "first gradient"
# What a backward has turned out to be at its end: of something else; one after which DDP has finished by itself, in a
# step like most or in another one; one in which a gradient has come twice; one that has left DDP waiting, as the last
# of its step, as another one, or because an optimizer has stepped within it.
FOREIGN = "end of a backward of something else"
USUAL = "end of backward, DDP has finished"
COMPLETE = "the same in an unusual step"
TWICE = "the same, a gradient came twice"
MISSING = "end of backward, gradients are missing"
MORE = "the same, more backwards are to come"
LEFT = "the same, an optimizer has stepped within"
# A backward within the wrapper's own forward has ended, and DDP waits for nothing: nobody has prepared it, or it has
# finished by itself (:mod:`.backward_in_forward`).
UNPREPARED = "end of backward within the forward, DDP waits for nothing"
# An optimizer is about to use gradients that wait, and: DDP has finished after parameters were marked.
OPTIMIZER, MARKED = "an optimizer steps", "DDP has finished after parameters were marked"

NOTHING = ""
# The state before the backward that has ended.
BEFORE = "the state before"

TRANSITIONS: Dict[Tuple[str, str], Tuple[str, str]] = {
    **{(state, FORWARD): ("arm", ARMED) for state in (IDLE, FINALIZED, LOCAL, PENDING, RUNNING)},
    # DDP that is armed stays so through further forwards.
    **{(state, LOCAL_FORWARD): (NOTHING, LOCAL) for state in (IDLE, FINALIZED, LOCAL, PENDING, RUNNING)},
    **{(state, GRADIENT): ("run", RUNNING) for state in (ARMED, PENDING)},
    (FINALIZED, GRADIENT): ("arm_again", RUNNING),
    (RUNNING, FOREIGN): (NOTHING, BEFORE),
    # Seen from the wrapper of all backwards, a model without hooks is still armed when its backward ends.
    **{(state, USUAL): ("finish", FINALIZED) for state in (ARMED, RUNNING)},
    (RUNNING, COMPLETE): ("reduced", FINALIZED),
    (RUNNING, TWICE): ("reduce_again", RUNNING),
    (RUNNING, MISSING): ("finalize", RUNNING),
    (ARMED, MISSING): ("finalize_afterwards", RUNNING),
    (RUNNING, MORE): ("wait", PENDING),
    **{(state, LEFT): (NOTHING, IDLE) for state in (ARMED, RUNNING)},
    **{(state, UNPREPARED): (NOTHING, IDLE) for state in (ARMED, RUNNING)},
    (PENDING, OPTIMIZER): ("finalize_afterwards", RUNNING),
    (RUNNING, MARKED): ("finalized", FINALIZED),
}
