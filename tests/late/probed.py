"""Models that DDP looks at on two ranks, and the probe in one process; see :mod:`tests.support.ddp_finding`."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support import ddp_finding, zoo
from tests.support.ddp_finding import Subject

Record = Dict[str, Any]
STEPS = 8


def inputs(steps: int = STEPS) -> List[Tensor]:
    return [torch.randn(3, 4, generator=torch.Generator().manual_seed(step)) for step in range(steps)]


class Branches(nn.Module):
    """Linear layers by name, and a forward that is given; ``flag`` is whatever it needs."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], names: str = "first branch last") -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in names.split():
            setattr(self, name, nn.Linear(4, 4))
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def _dead(model: Any, x: Tensor) -> Tensor:
    """A head that nobody calls."""
    return model.last(model.first(x))  # type: ignore[no-any-return]


def _by_batch(model: Any, x: Tensor) -> Tensor:
    """A branch that some batches take."""
    hidden = model.first(x)
    return model.last(model.branch(hidden) if x[0, 0] > 0 else hidden)  # type: ignore[no-any-return]


def _by_chance(model: Any, x: Tensor) -> Tensor:
    """A branch that a coin decides about."""
    hidden = model.first(x)
    return model.last(model.branch(hidden) if torch.rand(()) < 0.5 else hidden)  # type: ignore[no-any-return]


def _either(model: Any, x: Tensor) -> Tensor:
    """One of two branches in each step, and a third in none."""
    hidden = model.first(x)
    return model.last(model.branch(hidden) if x[0, 0] > 0 else model.other(hidden))  # type: ignore[no-any-return]


def _outside(model: Any, x: Tensor) -> Any:
    """An output that the loss leaves out."""
    hidden = model.first(x)
    return {"loss": model.last(hidden).square().mean(), "more": model.branch(hidden)}


def _tied(model: Any, x: Tensor) -> Tensor:
    """A weight with two names, used twice."""
    return model.last(model.first(x).tanh())  # type: ignore[no-any-return]


def _detached(model: Any, x: Tensor) -> Tensor:
    """A part that runs without gradients."""
    with torch.no_grad():
        hidden = model.branch(model.first(x))
    return model.last(hidden)  # type: ignore[no-any-return]


def _checkpointed(model: Any, x: Tensor) -> Tensor:
    """A part that is recomputed, and one that is in some steps."""
    hidden = checkpoint(model.branch, model.first(x), use_reentrant=False)
    return model.last(hidden) if x[0, 0] > 0 else hidden  # type: ignore[no-any-return]


def _reentrant(model: Any, x: Tensor) -> Tensor:
    """A part behind a checkpoint of the other kind, and one that is not used."""
    return checkpoint(model.last, model.first(x), use_reentrant=True)  # type: ignore[no-any-return]


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """A function of one's own that gives its weight no gradient: DDP takes the weight as ready, and leaves it None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def _undefined(model: Any, x: Tensor) -> Tensor:
    hidden = model.first(x)
    return model.last(_NoGradient.apply(hidden, model.branch.weight) + model.branch.bias)  # type: ignore[no-any-return]


def _frozen(model: Any, x: Tensor) -> Tensor:
    return model.last(model.first(x))  # type: ignore[no-any-return]


def _square(output: Any, batch: Any) -> Tensor:
    return output["loss"] if isinstance(output, dict) else output.square().mean()  # type: ignore[no-any-return]


def _by_hand(forward: Callable[[Any, Tensor], Any], names: str = "first branch last", flagged: bool = True) -> Subject:
    return Subject(lambda: Branches(forward, names), inputs(), _square, flagged)


def _with_a_frozen_part() -> Subject:
    def build() -> Any:
        model = Branches(_frozen)
        model.branch.requires_grad_(False)
        model.first.weight.requires_grad_(False)
        return model

    return Subject(build, inputs(), _square)


def _with_a_tied_weight() -> Subject:
    def build() -> Any:
        model = Branches(_tied)
        model.last.weight = model.first.weight
        return model

    return Subject(build, inputs(), _square)


def _normalized() -> Subject:
    def build() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))

    return Subject(build, inputs(), _square)


BY_HAND: Dict[str, Callable[[], Subject]] = {
    "dead": lambda: _by_hand(_dead),
    "by_batch": lambda: _by_hand(_by_batch),
    "by_chance": lambda: _by_hand(_by_chance),
    "either": lambda: _by_hand(_either, "first branch other third last"),
    "outside": lambda: _by_hand(_outside, flagged=False),
    "tied": _with_a_tied_weight,
    "detached": lambda: _by_hand(_detached),
    "checkpointed": lambda: _by_hand(_checkpointed),
    "reentrant": lambda: _by_hand(_reentrant, flagged=False),
    "undefined": lambda: _by_hand(_undefined, flagged=False),
    "frozen": _with_a_frozen_part,
    "normalized": _normalized,
}


def _of_transformers(name: str) -> Subject:
    entry = zoo.tiny_model(name)
    batches = [entry.batch(step) for step in range(STEPS)]
    return Subject(entry.build, batches, lambda output, batch: entry.loss(output))


# Where each layer of a model is skipped, its output has no graph, and there is nothing to train in the step.
FAMILIES = [entry.name for entry in zoo.ZOO if entry.available() and entry.survives()]


def by_hand(record: Record) -> None:
    for name, subject in BY_HAND.items():
        record[name] = ddp_finding.compared(subject())


def families(record: Record) -> None:
    for name in FAMILIES:
        record[name] = ddp_finding.compared(_of_transformers(name))
