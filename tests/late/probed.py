"""Models that DDP looks at on two ranks, and the probe in one process; see :mod:`tests.support.ddp_finding`."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.late.parting import Record
from tests.support import ddp_finding, zoo
from tests.support.ddp_finding import Subject

STEPS = 8


class Branches(nn.Module):
    """Linear layers by name, and a forward that is given."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in names.split():
            setattr(self, name, nn.Linear(4, 4))
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """A function of one's own that gives its weight no gradient: DDP takes the weight as ready, and leaves it None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def _outside(model: Any, x: Tensor) -> Any:
    hidden = model.first(x)
    return {"loss": model.last(hidden).square().mean(), "more": model.branch(hidden)}


def _detached(model: Any, x: Tensor) -> Any:
    with torch.no_grad():
        hidden = model.branch(model.first(x))
    return model.last(hidden)


def _undefined(model: Any, x: Tensor) -> Any:
    return model.last(_NoGradient.apply(model.first(x), model.branch.weight) + model.branch.bias)


def _frozen(model: Any) -> None:
    model.branch.requires_grad_(False)
    model.first.weight.requires_grad_(False)


def _tied(model: Any) -> None:
    model.last.weight = model.first.weight


def _square(output: Any, batch: Any) -> Tensor:
    return output["loss"] if isinstance(output, dict) else output.square().mean()  # type: ignore[no-any-return]


def _subject(
    forward: Callable[[Any, Tensor], Any],
    names: str = "first branch last",
    flagged: bool = True,
    change: Callable[[Any], None] = lambda model: None,
) -> Subject:
    def build() -> Any:
        model = Branches(forward, names)
        change(model)
        return model

    drawn = [torch.randn(3, 4, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]
    return Subject(build, drawn, _square, flagged)


def _normalized() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))


BY_HAND: Dict[str, Subject] = {
    # A head that nobody calls; a branch that some batches take, or a coin decides about.
    "dead": _subject(lambda m, x: m.last(m.first(x))),
    "by_batch": _subject(lambda m, x: m.last(m.branch(m.first(x)) if x[0, 0] > 0 else m.first(x))),
    "by_chance": _subject(lambda m, x: m.last(m.branch(m.first(x)) if torch.rand(()) < 0.5 else m.first(x))),
    # One of two branches in each step, and a third in none.
    "either": _subject(
        lambda m, x: m.last((m.branch if x[0, 0] > 0 else m.other)(m.first(x))), "first branch other third last"
    ),
    # An output that the loss leaves out; a weight with two names, used twice; a part that runs without gradients.
    "outside": _subject(_outside, flagged=False),
    "tied": _subject(lambda m, x: m.last(m.first(x).tanh()), change=_tied),
    "detached": _subject(_detached),
    # A part that is recomputed, with one that is in some steps, or behind a checkpoint of the other kind.
    "checkpointed": _subject(
        lambda m, x: (m.last if x[0, 0] > 0 else nn.Identity())(checkpoint(m.branch, m.first(x), use_reentrant=False))
    ),
    "reentrant": _subject(lambda m, x: checkpoint(m.last, m.first(x), use_reentrant=True), flagged=False),
    "undefined": _subject(_undefined, flagged=False),
    "frozen": _subject(lambda m, x: m.last(m.first(x)), change=_frozen),
    "normalized": Subject(_normalized, _subject(_undefined).batches, _square),
}


def _of_transformers(name: str) -> Subject:
    entry = zoo.tiny_model(name)
    batches = [entry.batch(step) for step in range(STEPS)]
    return Subject(entry.build, batches, lambda output, batch: entry.loss(output))


# Where each layer of a model is skipped, its output has no graph, and there is nothing to train in the step.
FAMILIES = [entry.name for entry in zoo.ZOO if entry.available() and entry.survives()]


def by_hand(record: Record) -> None:
    record["found"] = {name: ddp_finding.compared(subject) for name, subject in BY_HAND.items()}


def families(record: Record) -> None:
    record["found"] = {name: ddp_finding.compared(_of_transformers(name)) for name in FAMILIES}
