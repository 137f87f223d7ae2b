"""The states of one model's reduction (docs/unused-parameters.md has the picture), and what others know of it.

A transition is ``(state, event) -> (action, state)``; there is none for any other pair. An action is a method of
:class:`.finalizer.Finalizer`; it is called in the new state.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Tuple

from ..pipeline.model import Slot

# Of the stage, in the orders of what it follows.
PLACE = "finalize"
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


# A :class:`.finalizer.Finalizer`: its module imports those of its parts, which call it back.
Reduction = Any
# The reductions that ddpfix finalizes.
REDUCTION: Slot[Any] = Slot()
# All of them that are alive, for hooks that run in each step.
_ALL: List[weakref.ref[Any]] = []


def add(reduction: Reduction) -> bool:
    """Have this one among :func:`reductions` as long as it lives; return whether it is the only one.

    Which of several models a backward is of, only hooks can notice: none of them is checked any more.
    """
    known = reductions()
    for each in known:
        each.stop_checking()
    _ALL.append(weakref.ref(reduction, _ALL.remove))
    return not known


def discard(reduction: Reduction) -> None:
    for reference in tuple(_ALL):
        if reference() is reduction:
            _ALL.remove(reference)


def reductions() -> List[Reduction]:
    """Return the reductions of all models."""
    # Of a copy: a model that goes meanwhile, or another thread, shortens the list, and the next one would be left out.
    return [each for each in [reference() for reference in tuple(_ALL)] if each is not None]


def others(reduction: Reduction) -> List[Reduction]:
    """Return the reductions of all other models."""
    return [other for other in reductions() if other is not reduction]


def another_waits(reduction: Reduction) -> bool:
    """Return whether another model of the same thread waits for the backward that runs."""
    return any(
        other.thread == reduction.thread and (other.state is ARMED or other.state is RUNNING)
        for other in others(reduction)
    )


def share(one: Reduction, other: Reduction) -> bool:
    """Return whether two models have a parameter in common."""
    own = {id(parameter) for parameter in one.parameters}
    return any(id(parameter) in own for parameter in other.parameters)


def all_finalized() -> bool:
    """Return whether no reduction is under way: as it is at the optimizer's step of a usual loop."""
    for reference in tuple(_ALL):
        each = reference()
        if each is not None and (each.state is not FINALIZED or each.backwards.may_wait or each.used.is_due):
            return False
    return True
