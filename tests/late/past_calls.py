"""Training loops that call a module past its wrapper, or have the call mended by hand (``mended``)."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Callable, Dict

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from tests.late.parting import Record, batch, logged, trained

# How a loop calls the model: past its wrapper, or as torch asks for it.
Called = Callable[[Any], Any]


def net(norm: nn.Module) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh(), nn.Linear(8, 2))


# A loss of a model, which the loop calls in its way.
Loss = Callable[[Any, int, Called], Any]


def simple(model: Any, step: int, call: Called) -> Any:
    return call(model)(batch(step)).pow(2).mean()


def twice(model: Any, step: int, call: Called) -> Any:
    return (call(model)(batch(step)) * call(model)(batch(step + 1))).pow(2).mean()


def unequally_often(model: Any, step: int, call: Called) -> Any:
    """Each rank makes as many calls a step as it likes; the model has buffers."""
    called = call(model)
    # Through the wrapper that would be broadcasts of which the other rank knows nothing.
    more = 0 if called is model else distributed.get_rank()
    parts = [called(batch(step + 10 * number)).pow(2).mean() for number in range(1 + more)]
    return parts[0] + 0.0 * sum(parts[1:], torch.zeros(()))


def evaluated(model: Any, step: int, call: Called) -> Any:
    """The first rank evaluates by itself between two steps."""
    if distributed.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model.module(batch(step))
        model.train()
    return simple(model, step, call)


def recomputed(model: Any, step: int, call: Called) -> Any:
    # It would take part in the statistics twice.
    model.module[1].track_running_stats = False
    if call(model) is model:
        return simple(model, step, call)
    return checkpoint(model.module, batch(step), use_reentrant=False).pow(2).mean()


# What DDP reduces already, or nobody is to reduce: the call past the wrapper is right, and stays.


def beside(model: Any, step: int, call: Called) -> Any:
    """In one loss with a forward of the wrapper: DDP reduces both."""
    return (model(batch(step)) + model.module(batch(step + 1))).pow(2).mean()


def alone(model: Any, step: int, call: Called) -> Any:
    """The first rank looks at what the model gives in training mode, for its log."""
    ours = sys.modules.get("ddpfix.patches.common.bypass")
    if ours is not None:
        ours._LIMIT = 1.0  # type: ignore[attr-defined]
    if distributed.get_rank() == 0 and step % 2:
        float(model.module(batch(step)).detach().sum())
    return model(batch(step)).pow(2).mean()


ROUTED: Dict[str, Loss] = {
    **{each.__name__: each for each in (simple, twice, unequally_often, evaluated, recomputed)},
    "accumulated": simple,
}
STAYING = {each.__name__: each for each in (beside, alone)}


def run(record: Record, name: str, mended: bool = False) -> None:
    """Train; ranks whose gradients are not averaged stay in step by a number for the log."""
    micro = 3 if name == "accumulated" else 1

    def backward(model: Any, step: int) -> None:
        for part in range(micro):
            with model.no_sync() if part + 1 < micro else nullcontext():
                loss = {**ROUTED, **STAYING}[name]
                loss(model, micro * step + part, lambda model: model if mended else model.module).backward()

    # Before 2.13 torch refuses two forwards of a model with buffers in front of one backward.
    norm = nn.Identity() if name == "twice" else nn.BatchNorm1d(8)
    trained(record, logged, backward=backward, module=lambda: net(norm), count=6)
