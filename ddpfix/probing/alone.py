"""``ddpfix.probe``: a few training steps of a model in this process, without DDP and without a process group."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from ddpfix.models import graph, internals
from ddpfix.probing.module_calls import ModuleCalls
from ddpfix.probing.restore import kept
from ddpfix.probing.result import Result
from ddpfix.probing.subject import Subject
from ddpfix.user_code import module_of

LossFunction = Callable[[Any, Any], Any]
_DDP = "torch.nn.parallel.distributed"


def probe(model: Any, batch: Any, loss_fn: Optional[LossFunction] = None, steps: int = 3) -> Result:
    """Train a model for some forwards and backwards, and say what DDP would find, and which setting follows.

    No optimizer steps. Gradients, buffers, attributes of modules, training modes and the states of random generators
    are as before when this returns, also if the model raises; a forward that changes parameters by itself is noted.

    Args:
        model: a module, on any device; a model in evaluation mode is put into training mode meanwhile. Of a DDP wrapper
            the module inside is taken, and nothing is communicated.
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
    subject = Subject(model)
    calls = ModuleCalls(lambda module, around: subject if module in subject.modules else None)
    run = _Run(subject, calls, loss_fn)
    with kept(model), torch.enable_grad():
        if not model.training:
            model.train()
            run.notes["the model was in evaluation mode; the probe put it into training mode"] = None
        return run.steps(_batches(batch, steps), steps)


def _checked(model: Any, steps: int) -> Any:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r}: expected whole numbers from 1 on")
    homes = [module_of(level) for level in type(model).__mro__]
    if _DDP in homes:
        model = model.module
    elif any(home.startswith("torch.distributed") for home in homes):
        raise ValueError(f"model is a {type(model).__name__}: its parameters are sharded. Pass the model inside it")
    lazy = [name for name, each in model.named_parameters() if torch.nn.parameter.is_lazy(each)]
    if lazy:
        raise ValueError(f"model has parameters without a shape ({lazy[0]}): run one forward first")
    return model


def _batches(batch: Any, steps: int) -> Iterator[Any]:
    if hasattr(type(batch), "__next__"):
        for _, each in zip(range(steps), batch):
            yield each
    else:
        for _ in range(steps):
            yield batch


class _Run:
    """The steps of one probe."""

    def __init__(self, subject: Subject, calls: ModuleCalls, loss_fn: Optional[LossFunction]) -> None:
        self._subject, self._calls, self._loss_fn = subject, calls, loss_fn
        self._loss = ""
        # In the order of their first appearance.
        self.notes: Dict[str, None] = {}

    def steps(self, batches: Iterator[Any], wanted: int) -> Result:
        """Observe some steps, and say what they show."""
        versions = self._versions()
        self._calls.start()
        try:
            for each in batches:
                self.step(each)
        finally:
            self._calls.stop()
        changed = [name for name, version in self._versions().items() if version != versions[name]]
        found = self.result(wanted)
        if changed:
            found.notes.append(
                f"the forward itself changes {len(changed)} parameters ({changed[0]} ...), which are not restored"
            )
        return found

    def _versions(self) -> Dict[str, int]:
        """Return how often each parameter was written to."""
        return {name: internals.version(parameter) for name, parameter in self._subject.parameters}

    def step(self, batch: Any) -> None:
        given = _copied(batch)
        loss = self._loss_of(_called(self._subject.model, given), given)
        if loss.requires_grad:
            loss.backward()
        else:
            self.notes["in some steps the loss has no graph, and no parameter got a gradient"] = None
        if self._calls.failure is not None:
            raise RuntimeError(f"the model could not be observed: {self._calls.failure!r}") from self._calls.failure
        self._subject.close()
        self._subject.steps += 1
        for _, parameter in self._subject.parameters:
            parameter.grad = None

    def _loss_of(self, output: Any, batch: Any) -> Any:
        if self._loss_fn is not None:
            loss, self._loss = self._loss_fn(output, batch), "loss_fn(output, batch)"
            if not isinstance(loss, torch.Tensor):
                raise TypeError(f"loss_fn returned a {type(loss).__name__}, not a tensor")
        else:
            loss, self._loss = _own_loss(output)
        return loss if loss.numel() == 1 else loss.mean()

    def result(self, steps: int) -> Result:
        found = self._subject.result()
        found.loss = self._loss
        found.notes += self.notes
        if found.steps < steps:
            found.notes.append(f"the batches ended after {found.steps} of {steps} steps")
        if not self._subject.passes:
            found.notes.append("no training forward was observed: the model is compiled, or calls no module")
        return found


def _called(model: Any, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _own_loss(output: Any) -> Tuple[Any, str]:
    """Return the loss that an output has, or stands for, and what it is in words."""
    by_name = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if _is_number(by_name):
        return by_name, "the output's loss"
    if isinstance(output, (tuple, list)) and output and _is_number(output[0]):
        return output[0], "the first entry of the output"
    if _is_number(output):
        return output, "the output"
    summed: List[Any] = [t.float().sum() for t in graph.tensors_in(output) if t.is_floating_point() and t.requires_grad]
    if summed:
        return torch.stack([each.to(summed[0].device) for each in summed]).sum(), _SUM
    if graph.tensors_in(output):
        return torch.zeros(()), "none: no output has a graph"
    raise TypeError(f"the output, a {type(output).__name__}, contains no tensor: pass loss_fn(output, batch)")


_SUM = (
    "the sum of all outputs, since the output has no loss (no labels in the batch?): what your loss leaves out"
    " counts as used here. Give loss_fn(output, batch)"
)


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def _copied(value: Any) -> Any:
    """Return a batch whose tensors are copies: a forward may change them, and their gradients are not the caller's."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return value
