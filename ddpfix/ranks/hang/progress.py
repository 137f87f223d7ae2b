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
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

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
# How a function sets a variable of its own.
_STORES = ("STORE_FAST", "STORE_DEREF")
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


class _Count(NamedTuple):
    """A number under a name; ``own`` is False for what a function was given and has not changed."""

    name: str
    number: int
    own: bool


def of(frames: Sequence[FrameType]) -> Progress:
    """Return the progress that the functions of a stack know.

    Args:
        frames: the outermost one first. Those of torch, Python and ddpfix are left out.
    """
    epoch: Optional[_Count] = None
    batch: Optional[_Count] = None
    for frame in reversed(frames):
        with contextlib.suppress(Exception):
            its_epoch, its_batch = _of_frame(frame)
            epoch, batch = _outward(epoch, its_epoch), _outward(batch, its_batch)
    return Progress(None if epoch is None else epoch.number, "" if batch is None else f"{batch.name} {batch.number}")


def _outward(found: Optional[_Count], outer: Optional[_Count]) -> Optional[_Count]:
    """Return the progress with one function more.

    Lightning 2.0 hands on ``batch_idx`` 0 in each batch to a module whose training_step does not take it: a number that
    a function was given yields to the one of the same name in the function that counts.
    """
    counts = found is not None and outer is not None and outer.name == found.name and outer.own and not found.own
    return outer if found is None or counts else found


def _of_frame(frame: FrameType) -> Tuple[Optional[_Count], Optional[_Count]]:
    """Return the epoch and the batch that a function knows."""
    code = frame.f_code
    # Reading the variables of a function that a debugger traces might set them.
    if frame.f_trace is not None or places.is_library(places.Spot(code.co_filename, frame.f_lineno, code.co_name)):
        return None, None
    known = _some(frame, (*_EPOCHS, *_BATCHES, "self"))
    own = _attributes(known.pop("self", None))
    epoch, batch = _first(_EPOCHS, code, known, own), _first(_BATCHES, code, known, own)
    turns = _number(_attributes(_attributes(own.get(_LOOP)).get("current")).get("processed"))
    return (_Count(_LOOP, turns, True) if epoch is None and turns is not None else epoch), batch


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
    """Return whether a function may have called a builtin that gives out its variables; ``model.eval()`` is none."""
    if not _HOLDERS.intersection(code.co_names) - _METHODS:
        loads = (each for each in dis.get_instructions(code) if each.opname in _BY_NAME)
        return any(each.argval in _METHODS for each in loads)
    return True


def _attributes(owner: Any) -> Dict[str, Any]:
    """Return the attributes that an object holds itself; a class may have its own way to them, which is not taken."""
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _first(
    names: Sequence[str], code: CodeType, variables: Mapping[str, Any], attributes: Mapping[str, Any]
) -> Optional[_Count]:
    """Return the first name that has a number, with it; variables count more than attributes."""
    for known in (variables, attributes):
        for name in names:
            number = _number(known.get(name))
            if number is not None:
                return _Count(name, number, known is attributes or not _is_given(code, name))
    return None


def _is_given(code: CodeType, name: str) -> bool:
    """Return whether a variable is an argument that the function never sets."""
    if name not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return False
    # From 3.13 on one instruction may set two variables.
    stores = (each.argval for each in dis.get_instructions(code) if each.opname.startswith(_STORES))
    return not any(name == set_ or (isinstance(set_, tuple) and name in set_) for set_ in stores)


def _number(value: Any) -> Optional[int]:
    return value if type(value) is int else None
