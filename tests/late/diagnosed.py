"""Programs that DDP ends with an error about unused parameters; with the diagnosis's lines (TEST_LINES) they are cured.

A line is evaluated as it stands: ``model`` is the module that is wrapped, ``function`` and ``inputs`` are what is
checkpointed, and so on.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.late.parting import Record, sums

STEPS = 4
SIZE = 4


def lines(start: str) -> List[str]:
    """The lines of the diagnosis that begin like this."""
    return [line for line in json.loads(os.environ.get("TEST_LINES", "[]")) if line.startswith(start)]


def wrap(model: nn.Module, **given: Any) -> Any:
    """The model under DDP, as the program has it or as the lines say."""
    names = {"model": model, "DistributedDataParallel": DistributedDataParallel}
    for line in lines("model."):
        if line.startswith("model.reducer"):
            continue
        eval(line, names)
    for line in lines("DistributedDataParallel"):
        return eval(line, names)
    return DistributedDataParallel(model, **given)


def reentrant(function: Any, *inputs: Any) -> Any:
    """A reentrant checkpoint, or what the lines say."""
    for line in lines("torch.utils.checkpoint"):
        return eval(line, {"torch": torch, "function": function, "inputs": inputs})
    return checkpoint(function, *inputs, use_reentrant=True)


class Net(nn.Module):
    """A stack of some depth, with an auxiliary head."""

    def __init__(self, depth: int = 3, aux: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(depth))
        self.head = nn.Linear(SIZE, SIZE)
        if aux:
            self.aux = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))

    def forward(self, x: Any, skips: Sequence[int] = (), aux: bool = False) -> Any:
        for number, layer in enumerate(self.layers):
            if number not in skips:
                x = self.call(layer, x)
        return self.head(x) + self.aux(x) if aux else self.head(x)

    def call(self, layer: Any, x: Any) -> Any:
        return layer(x)


def batch(step: int) -> Any:
    generator = torch.Generator().manual_seed(100 * distributed.get_rank() + step)
    return torch.randn(2, SIZE, generator=generator)


def trained(record: Record, model: Any, loss: Any) -> None:
    """Train; the error is the scenario's."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    record["done"] = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss(model, step)
        if value is not None:
            value.backward()
        optimizer.step()
        record["done"] += 1
    record["weights"] = sums(model)


# "Expected to have finished reduction".


class Dropping(Net):
    """Skips layers at random, the same ones on all ranks."""

    def __init__(self) -> None:
        super().__init__(6, aux=False)
        self.layerdrop = 0.5
        self._draws = torch.Generator().manual_seed(5)

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        draws = torch.rand(len(self.layers), generator=self._draws)
        return super().forward(x, [number for number in range(1, 6) if draws[number] < self.layerdrop])


class Two(Net):
    """Has a second output."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        y = super().forward(x)
        return {"main": y, "extra": self.aux(x)}


class Lost(Net):
    """Uses a head without gradient."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        with torch.no_grad():
            shift = self.aux(x)
        return super().forward(x) + shift


class Reentrant(Net):
    def call(self, layer: Any, x: Any) -> Any:
        return reentrant(layer, x)


# "Expected to mark a variable ready only once".


class Twice(Net):
    """The second layer stands in two checkpoints."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        x = self.layers[0](x)
        for _ in range(2):
            x = torch.tanh(reentrant(self.layers[1], x))
        return super().forward(x, [0, 1])


class Step(nn.Module):
    """Its forward is a step of the program: it prepares DDP, and calls backward within the wrapped model's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Any, wrapper: Any) -> None:
        loss = self.net(x).sum()
        wrapper.reducer._rebuild_buckets()
        for line in lines("model.reducer") or ["model.reducer.prepare_for_backward([])"]:
            eval(line, {"model": wrapper, "loss": loss})
        loss.backward()


Build = Callable[[], nn.Module]
Loss = Callable[[Any, int], Any]


def usual(model: Any, step: int) -> Any:
    return model(batch(step)).sum()


def through_inputs(model: Any, step: int) -> Any:
    """The inputs need gradients, as reentrant checkpoints ask for them."""
    return model(batch(step).requires_grad_()).sum()


def of_output(model: Any, step: int) -> Any:
    """The program holds the whole output while it has a loss of one part."""
    output = model(batch(step))
    return output["main"].sum()


def within(model: Any, step: int) -> None:
    model.require_backward_grad_sync = False
    model(batch(step), model)


def two_backwards(model: Any, step: int) -> Any:
    """Two losses with parameters in common."""
    output = model(batch(step))
    first_loss, second_loss = output["main"].sum(), output["extra"].sum()
    for line in lines("(first_loss"):
        eval(line, {"first_loss": first_loss, "second_loss": second_loss})
        return None
    first_loss.backward(retain_graph=True)
    return second_loss + first_loss


def skipping(*skips: Sequence[int]) -> Loss:
    """A loss that skips layers, by the step."""
    return lambda model, step: model(batch(step), skips[step % len(skips)]).sum()


def stack() -> nn.Module:
    return Net(aux=False)


def program(build: Build, loss: Loss = usual, **options: bool) -> Callable[[Record], None]:
    """Train a model with a loss, under DDP with these keywords."""
    return lambda record: trained(record, wrap(build(), **options), loss)


PROGRAMS: Dict[str, Callable[[Record], None]] = {
    "layerdrop": program(Dropping),
    # A head that is never used.
    "never": program(Net),
    # The user's own False, which stays.
    "explicit_false": program(Net, find_unused_parameters=False),
    "outside": program(Two, of_output),
    # The same, and the program keeps nothing but the first output.
    "dropped": program(Two, lambda model, step: model(batch(step))["main"].sum()),
    "lost": program(Lost),
    # The first rank alone leaves a layer out, or each rank another one.
    "one_rank": program(stack, lambda model, step: model(batch(step), [] if distributed.get_rank() else [1]).sum()),
    "each_its_own": program(stack, lambda model, step: model(batch(step), [1 + distributed.get_rank()]).sum()),
    # A module that never runs beside reentrant checkpoints, which the flag excludes.
    "unused_and_reentrant": program(Reentrant, through_inputs),
    "reentrant_and_flag": program(Reentrant, through_inputs, find_unused_parameters=True),
    # The loss uses a part of the model by itself.
    "outside_forward": program(
        Net,
        lambda model, step: model(batch(step)).sum() + model.module.aux(batch(step)).sum(),
        find_unused_parameters=True,
    ),
    # The two forwards of a step use all layers together.
    "two_forwards": program(
        stack,
        lambda model, step: model(batch(step), [1]).sum() + model(batch(step), [2]).sum(),
        find_unused_parameters=True,
    ),
    "two_backwards": program(Two, two_backwards),
    "reentrant_twice": program(lambda: Twice(aux=False)),
    # DDP is told of no output, and is not asked to look for what is unused, or is.
    "within": program(Step, within),
    "within_with_the_flag": program(Step, within, find_unused_parameters=True),
    # A layer that the first steps skip, or the third one.
    "static_new": program(stack, skipping([1], [1], [], []), static_graph=True),
    "static_less": program(stack, skipping([], [], [1], []), static_graph=True),
}
