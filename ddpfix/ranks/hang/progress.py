"""How far a program is by its own count: the epoch, and the batch in it, where no sampler and no loader tells them.

Loops over epochs and batches keep their numbers in variables of a few names, and trainers in attributes of such names.
They are read from the stack when a job seems to hang; nothing is noted before, and no code of the program runs for it.
"""

from __future__ import annotations

import contextlib
import dis
import sys
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from ddpfix.ranks.hang import places

_EPOCHS = ("epoch", "epoch_idx", "epoch_index", "current_epoch", "cur_epoch", "cur_epoch_idx", "epoch_num")
_BATCHES = ("batch_idx", "batch_index", "batch_id", "batch_num", "step", "step_idx", "iteration", "global_step")
# An attribute that holds the progress of a loop as an object, with the number of turns that have been made.
_LOOP = "epoch_progress"
# A function that uses one of these may hold the mapping that its frame gives out, and would see it change.
_HOLDERS = frozenset(("locals", "vars", "dir", "eval", "exec", "builtins", "__builtins__"))
# Of these, what methods of modules and cursors are called as well.
_METHODS = frozenset(("eval", "exec"))
# How a function gets at a builtin, and not at an attribute of that name.
_BY_NAME = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
# The frame, the variable here, and the argument of the function that counts.
_REFERENCES = 3


class Progress(NamedTuple):
    """Where a program is.

    Attributes:
        epoch: by the innermost function that knows it; None where none does.
        batch: a name and its number, in words ("batch_idx 17"); "" where there is none.
    """

    epoch: Optional[int] = None
    batch: str = ""


def of(frames: Sequence[FrameType]) -> Progress:
    """What the functions of a stack know.

    Args:
        frames: the outermost one first. Those of torch, Python and ddpfix are left out.
    """
    found = Progress()
    for frame in reversed(frames):
        inner = Progress()
        with contextlib.suppress(Exception):
            inner = _of_frame(frame)
        found = Progress(inner.epoch if found.epoch is None else found.epoch, found.batch or inner.batch)
    return found


def _of_frame(frame: FrameType) -> Progress:
    code = frame.f_code
    # Reading the variables of a function that a debugger traces might set them.
    if frame.f_trace is not None or places.is_library(places.Spot(code.co_filename, frame.f_lineno, code.co_name)):
        return Progress()
    known = _some(frame, (*_EPOCHS, *_BATCHES, "self"))
    own = _attributes(known.pop("self", None))
    epoch, batch = _first(_EPOCHS, known, own), _first(_BATCHES, known, own)
    turns = _number(_attributes(_attributes(own.get(_LOOP)).get("current")).get("processed"))
    return Progress(turns if epoch is None else epoch[1], "" if batch is None else f"{batch[0]} {batch[1]}")


def _some(frame: FrameType, names: Sequence[str]) -> Dict[str, Any]:
    """Some variables of a function, of which nothing is kept alive."""
    is_copy = bool(frame.f_code.co_flags & CO_OPTIMIZED) and sys.version_info < (3, 13)
    if is_copy and _may_hold(frame.f_code):
        return {}
    known = frame.f_locals
    found = {name: known[name] for name in names if name in known}
    if is_copy and sys.getrefcount(known) <= _REFERENCES:
        # The frame would hold this copy of its variables until it ends: a loss with its graph, say.
        known.clear()
    return found


def _may_hold(code: CodeType) -> bool:
    """Whether a function may have called a builtin that gives out its variables; ``model.eval()`` is none of them."""
    if not _HOLDERS.intersection(code.co_names) - _METHODS:
        loads = (each for each in dis.get_instructions(code) if each.opname in _BY_NAME)
        return any(each.argval in _METHODS for each in loads)
    return True


def _attributes(owner: Any) -> Dict[str, Any]:
    """Those that an object holds itself; a class may have made its own way to them, which is not taken."""
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _first(names: Sequence[str], *places_of: Mapping[str, Any]) -> Any:
    """The first name that has a number, with it; variables count more than attributes."""
    for known in places_of:
        for name in names:
            number = _number(known.get(name))
            if number is not None:
                return name, number
    return None


def _number(value: Any) -> Optional[int]:
    return value if type(value) is int else None
