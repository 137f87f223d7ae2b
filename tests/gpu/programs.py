"""Programs that torch trains rightly by itself: each mode has to train them the same, bit for bit, without a wait more.

A program is a class whose instance takes steps. It is run in each mode as a cell of its own, and the cells are compared
by :mod:`tests.gpu.sections`. Loops have more than one forward or backward a step, and autograd gives its answers in
threads of a device. On streams beside the default one ranks and batches choose branches, so that marks are needed.
Graphs are captures, callables that are graphs, a whole step, and the compiler's own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterator, List

import torch
from torch import nn

from tests.gpu import card, models, syncs, world
from tests.gpu.training import Mode, active, wrapped
from tests.support import recorder

WIDTH = 16
# Seconds for which the card is late with what comes next.
_LATE = 0.02
# As torch's manual asks for, before a step with DDP is captured.
_WARM = 11
Losses = Iterator[torch.Tensor]


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """By step a digest of what was trained, and on a card the waits of two more steps."""
    steps, digests = cell["options"]["steps"], []
    with active(cell["mode"]) as mode:
        torch.manual_seed(5)
        program = KINDS[cell["kind"]](mode)
        torch.manual_seed(100 + world.rank())
        for number in range(steps):
            program.step(number)
            digests.append(recorder.digest(program.tensors))
        finite = all(bool(torch.isfinite(each).all()) for each in program.tensors)
        counts = syncs.profiled(lambda: list(map(program.step, (steps, steps + 1)))) if card.here() else {}
    return {"steps": digests, "finite": finite, "counts": counts, "said": program.said, "wrong": []}


class Program:
    """One program."""

    tensors: List[torch.Tensor]  # what is compared after each step
    said = ""  # half a sentence for the table

    def step(self, number: int) -> None:
        raise NotImplementedError


def one(model: Any, number: int) -> Losses:
    yield model(data(number)).square().mean()


class Trained(Program):
    """One wrapped model, trained by SGD on the losses of a step, one backward after the other."""

    def __init__(
        self,
        mode: Mode,
        built: Callable[[], nn.Module] = lambda: stack(4),
        losses: Callable[[Any, int], Losses] = one,
        cap: float = 0.01,
    ) -> None:
        self.model, self.losses = wrapped(built(), mode, cap), losses
        # Buffers are each rank's own until the next forward, and show in what parameters become.
        self.optimizer, self.tensors = sgd(self.model), list(self.model.parameters())

    def step(self, number: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for loss in self.losses(self.model, number):
            loss.backward()
        self.optimizer.step()


def stack(depth: int, out: int = WIDTH) -> nn.Module:
    layers = [layer for _ in range(depth - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, out))


class Apart(nn.Module):  # type: ignore[misc, unused-ignore]
    """Its second part is on a device of its own."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.other(self.one(values).to(next(self.other.parameters()).device))
        return output


def data(number: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * part + 100 * world.rank() + number)
    return torch.randn(4, WIDTH, generator=generator).to(world.device())


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05)


class Buffered(nn.Module):  # type: ignore[misc, unused-ignore]
    """Has twelve buffers that each forward changes and adds: torch writes to them between two forwards without harm."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))
        for part in self.parts:
            part.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            with torch.no_grad():
                part.shift.mul_(0.9).add_(values.mean(0), alpha=0.1)
            values = torch.tanh(part(values) + part.shift)
        return values


def siamese(model: Any, number: int) -> Losses:
    """Two forwards of one model before the backward, as in DPO and siamese networks."""
    yield (model(data(number)) - model(data(number, 1))).square().mean()


class Gan(Program):
    """Two wrapped models that train in turns; the critic gets gradients in both turns."""

    def __init__(self, mode: Mode) -> None:
        self.maker, self.critic = wrapped(stack(4), mode), wrapped(stack(4, 1), mode)
        self.optimizers = sgd(self.maker), sgd(self.critic)
        self.tensors = [*self.maker.parameters(), *self.critic.parameters()]

    def step(self, number: int) -> None:
        made, judged = self.optimizers
        judged.zero_grad(set_to_none=True)
        fake = self.maker(data(number)).detach()
        (self.critic(fake).mean() - self.critic(data(number, 1)).mean()).backward()
        judged.step()
        made.zero_grad(set_to_none=True)
        (-self.critic(self.maker(data(number, 2))).mean()).backward()
        made.step()


def two_backwards(model: Any, number: int) -> Losses:
    """A forward and a backward twice before the optimizer's step, all of them averaged."""
    for part in range(2):
        yield model(data(number, part)).square().mean()


def penalty(model: Any, number: int) -> Losses:
    """A gradient penalty: the loss has a gradient in it (``create_graph``)."""
    given = data(number).requires_grad_()
    output = model(given)
    slope = torch.autograd.grad(output.sum(), given, create_graph=True)[0]
    yield output.mean() + slope.square().mean()


def accumulation(model: Any, number: int) -> Losses:
    """Two micro-batches a step, the first one without a reduction, with enough steps for looks of the drift watch."""
    with model.no_sync():
        yield model(data(number)).square().mean()
    yield model(data(number, 1)).square().mean()


def branch(model: Any, number: int) -> Losses:
    loss = model(data(number), (number + world.rank()) % 3).square().mean()
    card.sleep(_LATE)
    yield loss


class Built(Trained):
    """DDP is built on a side stream, as Lightning does, and trained on the default one."""

    def __init__(self, mode: Mode) -> None:
        with card.side_stream():
            super().__init__(mode, models.Branches, branch)


class Whole(Built):
    """The whole loop is on a side stream."""

    def step(self, number: int) -> None:
        with card.side_stream():
            super().step(number)


class Two(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two branches on streams of their own, with outputs that come from both; a third one is chosen by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.unused = (stack(3) for _ in range(3))

    def forward(self, values: torch.Tensor) -> Any:
        outputs = []
        for part in (self.one, self.other):
            with card.side_stream():
                outputs.append(part(values))
        return outputs


def outputs(model: Any, number: int) -> Losses:
    """The outputs of one forward were computed on two side streams."""
    one, other = model(data(number))
    card.sleep(_LATE)
    yield one.square().mean() + other.mean()


class Captures(Trained):
    """Another module is captured twenty times while rows of a trace wait for values from the card."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        self.other, self.given = stack(2).to(world.device()), data(0)
        self.count = 0

    def step(self, number: int) -> None:
        for _ in range(4):
            self.optimizer.zero_grad(set_to_none=True)
            self.model(data(number)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            # In the mode of torch.cuda.graph itself, what any thread asks of the card breaks the capture.
            with card.capture("global"), torch.no_grad():
                self.other(self.given)
            self.count += 1
        self.said = f"{self.count} captures"


def callables() -> Any:
    """A part of the model is a graph before it is wrapped."""
    model: Any = stack(4).to(world.device()).train()
    if card.here():
        model[2] = torch.cuda.make_graphed_callables(model[2], (data(0).requires_grad_(),))
    return model


class WholeStep(Program):
    """Forward, backward and an optimizer that allows it are one graph, after steps that warm up on a side stream."""

    def __init__(self, mode: Mode) -> None:
        with card.side_stream():
            self.model = wrapped(stack(4), mode)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, capturable=card.here())
            self.given = data(0)
            for number in range(_WARM):
                self.given.copy_(data(number))
                self._step()
        self.tensors = list(self.model.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        self.replay = self._step
        if card.here():
            graph: Any = torch.cuda.CUDAGraph()
            # Threads of NCCL and of autograd ask the card for things meanwhile.
            with card.capture("thread_local", graph):
                self._step()
            self.replay = graph.replay

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.given).square().mean().backward()
        self.optimizer.step()

    def step(self, number: int) -> None:
        self.given.copy_(data(number + _WARM))
        self.replay()


class Compiled(Trained):
    """``torch.compile(mode="reduce-overhead")`` of the wrapped model, which captures graphs by itself."""

    def __init__(self, mode: Mode) -> None:
        import torch._dynamo

        torch._dynamo.reset()
        # The compiler splits graphs where buckets end, and refuses limits below that of the first bucket.
        super().__init__(mode, cap=25.0)
        how: Dict[str, Any] = {"mode": "reduce-overhead"} if card.here() else {"backend": "eager"}
        self.model = torch.compile(self.model, **how)


KINDS: Dict[str, Callable[[Mode], Program]] = {
    "siamese, 12 buffers": partial(Trained, built=Buffered, losses=siamese),
    "GAN": Gan,
    "two backwards": partial(Trained, losses=two_backwards),
    "gradient penalty": partial(Trained, built=partial(stack, 4, 1), losses=penalty),
    "accumulation": partial(Trained, built=partial(stack, 6), losses=accumulation),
    "DDP built on a side stream": Built,
    "whole loop on a side stream": Whole,
    "outputs of two streams": partial(Trained, built=Two, losses=outputs),
    "captures while a trace is written": Captures,
    "make_graphed_callables": partial(Trained, built=callables),
    "whole step captured": WholeStep,
    "reduce-overhead": Compiled,
}
