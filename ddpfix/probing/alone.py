"""``ddpfix.probe``: a few training steps of a model in this process, without DDP and without a process group."""

from __future__ import annotations

import contextlib
import random
import sys
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpfix import devices
from ddpfix.models import graph, internals
from ddpfix.probing.program import Program
from ddpfix.probing.result import Result

_SUM = (
    "the sum of all outputs, since the output has no loss (no labels in the batch?): what your loss leaves out"
    " counts as used here. Give loss_fn(output, batch)"
)


def probe(model: Any, batch: Any, loss_fn: Optional[Callable[[Any, Any], Any]] = None, steps: int = 3) -> Result:
    """Train a model for some forwards and backwards, and say what DDP would find, and which setting follows.

    No optimizer steps. Gradients, buffers, attributes of modules, training modes and the states of random generators
    are as before when this returns, also if the model raises.

    Args:
        model: a module, on any device; it is put into training mode meanwhile. Of a DDP wrapper the module inside is
            taken, and nothing is communicated.
        batch: what the forward is called with: a mapping gives keywords, a tuple or list positional arguments, anything
            else is the one argument. An iterator (of a loader, say) gives one batch a step.
        loss_fn: ``loss_fn(output, batch)`` gives the loss. Without it, that is the ``loss`` of the output, the first
            entry of a tuple if it is a single number, a single number by itself, or the sum of all outputs.
        steps: forwards and backwards to take; what is random, or depends on the batch, needs several.

    Raises:
        TypeError, ValueError: an argument is not of these kinds; the message names it.
        RuntimeError: the model could not be observed.
    """
    model = _checked(model, steps)
    program = Program(steps, lambda *given: None, lambda: None)
    subject = program.observe(model)
    batches = batch if hasattr(type(batch), "__next__") else [batch] * steps
    loss = ""
    with _kept(model), torch.enable_grad():
        model.train()
        program.start()
        try:
            for _, given in zip(range(steps), batches):
                loss = _step(model, _copied(given), loss_fn)
                subject.close()
                subject.steps += 1
                for _, parameter in subject.parameters:
                    parameter.grad = None
        finally:
            program.stop()
        if program.failure is not None:
            raise RuntimeError(f"the model could not be observed: {program.failure!r}") from program.failure
        result = subject.result()
        result.loss, result.under = loss, ""
        return result


def _checked(model: Any, steps: Any) -> Any:
    """Return the module to train; TypeError or ValueError for what cannot be trained, or so often."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r}: expected whole numbers from 1 on")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    found = model.module if isinstance(model, DistributedDataParallel) else model
    lazy = [name for name, each in found.named_parameters() if torch.nn.parameter.is_lazy(each)]
    if lazy:
        raise ValueError(f"model has parameters without a shape ({lazy[0]}): run one forward first")
    return found


def _step(model: Any, batch: Any, loss_fn: Optional[Callable[[Any, Any], Any]]) -> str:
    """Run forward and backward on a batch; return what the loss is, in words."""
    output = _called(model, batch)
    found, words = (loss_fn(output, batch), "loss_fn(output, batch)") if loss_fn else _own_loss(output)
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"loss_fn returned a {type(found).__name__}, not a tensor")
    if found.requires_grad:
        found.mean().backward()
    return words


def _called(model: Any, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


@contextlib.contextmanager
def _kept(model: Any) -> Iterator[None]:
    """Restore at the end what training changes in a model, and what it draws; buffers are copies meanwhile."""
    parameters = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()]
    modules = [(each, dict(vars(each)), dict(internals.buffers_in(each))) for each in model.modules()]
    held = [value for _, own, _ in modules for name, value in own.items() if name not in _OWN]
    restores = [*map(_restoring, held), *_generators()]
    copies: Dict[int, Any] = {}
    try:
        for module, _, buffers in modules:
            for name, buffer in buffers.items():
                if buffer is not None:
                    copy = copies.setdefault(id(buffer), buffer.detach().clone())
                    internals.buffers_in(module)[name] = copy
        for parameter, _, _ in parameters:
            parameter.grad = None
        yield
    finally:
        for module, attributes, buffers in modules:
            now, own = vars(module), internals.buffers_in(module)
            for name in [name for name in now if name not in attributes]:
                del now[name]
            now.update(attributes)
            own.clear()
            own.update(buffers)
        for parameter, gradient, trains in parameters:
            parameter.grad = gradient
            if parameter.requires_grad is not trains:
                parameter.requires_grad_(trains)
        for restore in restores:
            if restore is not None:
                restore()


# What modules keep of their own; it is not replaced in a forward, but for buffers.
_OWN = ("_modules", "_parameters", "_buffers")


def _restoring(value: Any) -> Optional[Callable[[], object]]:
    """Return a function that gives a container its contents, or a generator its state, of now; None for all else."""
    numpy: Any = sys.modules.get("numpy.random")
    if type(value) in (list, dict, set):
        content, put = value.copy(), value.extend if type(value) is list else value.update
        return lambda: (value.clear(), put(content))
    if numpy is not None and isinstance(value, numpy.Generator):
        bits = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", bits)
    if isinstance(value, torch.Generator) or (numpy is not None and isinstance(value, numpy.RandomState)):
        return partial(value.set_state, value.get_state())
    return partial(value.setstate, value.getstate()) if isinstance(value, random.Random) else None


def _generators() -> Iterator[Callable[[], object]]:
    """Yield functions that give the global generators the states that they have now."""
    yield partial(torch.set_rng_state, torch.get_rng_state())
    yield partial(random.setstate, random.getstate())
    yield from devices.random_states()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        yield partial(numpy.set_state, numpy.get_state())


def _own_loss(output: Any) -> Tuple[Any, str]:
    """Return the loss that an output has, or stands for, and what it is in words."""
    by_name = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    first = output[0] if isinstance(output, (tuple, list)) and output else None
    for value, words in (
        (by_name, "the output's loss"),
        (first, "the first entry of the output"),
        (output, "the output"),
    ):
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point():
            return value, words
    tensors = graph.tensors_in(output)
    if not tensors:
        raise TypeError(f"the output, a {type(output).__name__}, contains no tensor: pass loss_fn(output, batch)")
    summed: List[Any] = [each.float().sum() for each in tensors if each.is_floating_point() and each.requires_grad]
    if not summed:
        return torch.zeros(()), "none: no output has a graph"
    return torch.stack([each.to(summed[0].device) for each in summed]).sum(), _SUM


def _copied(value: Any) -> Any:
    """Return a batch whose tensors are copies: a forward may change them, and their gradients are not the caller's."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, Mapping) else value
