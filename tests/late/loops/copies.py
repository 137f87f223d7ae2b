"""Copies of models, wrapped or not, and models that are wrapped again."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.representation import follow
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven


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


@kind(plain="error", plain_cause=UNFINISHED)
def copy_in_every_step(loop: Loop) -> None:
    """A moving average is a deep copy of the wrapped model, made anew between forward and backward now and then."""
    model = loop.wrap(Blocks())
    average, optimizer = copy.deepcopy(model), sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
        loop.update(optimizer, model)
        follow(average, model)
        with torch.no_grad():
            average(loop.batch(step))
        optimizer.zero_grad()
        best = copy.deepcopy(model)
        assert best.module is not model.module


def _pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@kind(counted=False)
def pickled_and_trained(loop: Loop) -> None:
    """The wrapped model goes through pickle, and what comes back is trained."""
    model = loop.wrap(Blocks())
    train(loop, model, 2, False)
    model = _pickled(model)
    loop.track(model)
    train(loop, model, 3, False, 10)


@kind(plain="error", plain_cause=UNFINISHED)
def pickled_and_trained_skipping(loop: Loop) -> None:
    """The same with blocks left out, from the start."""
    model = _pickled(loop.wrap(Blocks()))
    loop.track(model)
    train(loop, model, 3, True)


@kind(plain="error", plain_cause=UNFINISHED)
def saved_whole(loop: Loop) -> None:
    """``torch.save`` of the whole wrapped model between steps, and its state is loaded into the one that trains."""
    model = loop.wrap(Blocks())
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        loss(model(loop.batch(step), uneven(loop.rank, step))).backward()
        loop.update(optimizer, model)
        optimizer.zero_grad()
        file = io.BytesIO()
        torch.save(model, file)
        torch.save(model.state_dict(), file)
        if step == 1:
            model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()})


@kind(plain="error", plain_cause=UNFINISHED, three=True)
def wrapped_again(loop: Loop) -> None:
    """The module is wrapped anew every two steps, as loops do that freeze layers."""
    module = Blocks()
    for turn in range(3):
        train(loop, loop.wrap(module), 2, True, 10 * turn)


@kind(plain="error", plain_cause=UNFINISHED)
def wrapped_again_and_kept(loop: Loop) -> None:
    """The same with old wrappers that are kept, whose reducers still have hooks on the parameters."""
    module, kept = Blocks(), []
    for turn in range(3):
        kept.append(loop.wrap(module))
        train(loop, kept[-1], 2, True, 10 * turn)


@kind(counted=False, three=True)
def wrapped_twice(loop: Loop) -> None:
    """Two wrappers of one module, used in turn: both reducers have hooks on the same parameters."""
    module = Blocks()
    models = [loop.wrap(module), loop.wrap(module)]
    optimizer = sgd(models[0])
    for step in loop.steps():
        model = models[step % 2]
        optimizer.zero_grad()
        loss(model(loop.batch(step))).backward()
        loop.update(optimizer, model)


@kind()
def one_module_in_two_models(loop: Loop) -> None:
    """Two wrapped models share a frozen encoder."""
    encoder = mlp().requires_grad_(False)
    models = [loop.wrap(torch.nn.Sequential(encoder, mlp())) for _ in range(2)]
    optimizer = sgd(*models)
    for step in loop.steps():
        optimizer.zero_grad()
        for model in models:
            loss(model(loop.batch(step))).backward()
            loop.sync(model)
        optimizer.step()


@kind(plain="error", plain_cause=UNFINISHED)
def wrapped_within_a_model(loop: Loop) -> None:
    """A module of the user's holds the wrapped model, calls it twice and adds a layer that DDP does not average."""
    inner = loop.wrap(Apart(2))
    for step in loop.trained(inner):
        one, other = inner(loop.batch(step)), inner(loop.batch(step, 1), [0])
        (loss(one[(loop.rank + step) % 2]) + loss(other[0])).backward()


@kind()
def forgotten_and_collected(loop: Loop) -> None:
    """Models are wrapped, trained for a step and dropped, with a forward whose graph is freed with them."""
    for turn in range(3):
        model = loop.wrap(mlp())
        optimizer = sgd(model)
        for step in loop.steps(2):
            optimizer.zero_grad()
            loss(model(loop.batch(step, turn))).backward()
            loop.update(optimizer, model)
        model(loop.batch(99))
        del model, optimizer
