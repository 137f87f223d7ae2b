"""Copies of models, wrapped or not, and models that are wrapped again."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop
from tests.late.loops.tiny_model import Blocks, loss, uneven


def train(loop: Loop, model: Any, count: int, skip: bool, shift: int = 0) -> None:
    for step in loop.trained(model, count=count):
        loss(model(loop.batch(step + shift), uneven(loop.rank, step) if skip else ())).backward()


def _copied(loop: Loop, skip: bool) -> None:
    model = loop.wrap(Blocks())
    if not skip:
        train(loop, model, 2, skip)
    other = copy.deepcopy(model)
    loop.track(other)
    train(loop, other, 3, skip, 10)
    train(loop, model, 2, skip, 20)


@kind(counted=False)
def copy_is_trained(loop: Loop) -> None:
    """A deep copy of the wrapped model is trained, and then the original again."""
    _copied(loop, False)


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def copy_is_trained_skipping(loop: Loop) -> None:
    """A deep copy of the wrapped model is trained before the original, both leave blocks out."""
    _copied(loop, True)


def _pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@kind(plain="error", plain_cause=UNFINISHED)
def pickled_and_trained_skipping(loop: Loop) -> None:
    """The wrapped model goes through pickle, and what comes back is trained; blocks are left out from the start."""
    model = _pickled(loop.wrap(Blocks()))
    loop.track(model)
    train(loop, model, 3, True)


@kind(plain="error", plain_cause=UNFINISHED)
def wrapped_again_and_kept(loop: Loop) -> None:
    """The module is wrapped anew every two steps, and old wrappers, whose reducers have hooks on it, are kept."""
    module, kept = Blocks(), []
    for turn in range(3):
        kept.append(loop.wrap(module))
        train(loop, kept[-1], 2, True, 10 * turn)


@kind(counted=False, three=True)
def wrapped_twice(loop: Loop) -> None:
    """Two wrappers of one module, used in turn: both reducers have hooks on the same parameters."""
    module = Blocks()
    models = [loop.wrap(module), loop.wrap(module)]
    for step in loop.trained(models[0]):
        loss(models[step % 2](loop.batch(step))).backward()
