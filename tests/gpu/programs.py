"""The programs of :mod:`tests.gpu.alike`: loops, streams and CUDA graphs.

Loops have more than one forward or backward a step, and autograd gives its answers in threads of a device. On streams
beside the default one ranks and batches choose branches, so that marks are needed. Graphs are captures, callables that
are graphs, a whole step, and the compiler's own.
"""

from __future__ import annotations

from typing import Any, ContextManager, Dict, Iterator

import torch
from torch import nn

from tests.gpu import alike, card, models, world
from tests.gpu.alike import WIDTH, Program, Trained, data, held, sgd, stack, wrapped
from tests.gpu.modes import Mode

# Seconds for which the card is late with what comes next.
_LATE = 0.02
# As torch's manual asks for, before a step with DDP is captured.
_WARM = 11


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    return alike.run(cell, KINDS[cell["kind"]])


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


class Siamese(Trained):
    """Two forwards of one model before the backward, as in DPO and siamese networks."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        # Buffers are each rank's own until the next forward: what parameters become depends on them.
        self.tensors = list(self.model.parameters())

    def built(self) -> nn.Module:
        return Buffered()

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        yield (self.model(data(number)) - self.model(data(number, 1))).square().mean()


class Gan(Program):
    """Two wrapped models that train in turns; the critic gets gradients in both turns."""

    def __init__(self, mode: Mode) -> None:
        self.maker, self.critic = wrapped(stack(4), mode), wrapped(stack(4, 1), mode)
        self.optimizers = sgd(self.maker), sgd(self.critic)
        self.tensors = held(self.maker, self.critic)

    def step(self, number: int) -> None:
        made, judged = self.optimizers
        judged.zero_grad(set_to_none=True)
        fake = self.maker(data(number)).detach()
        (self.critic(fake).mean() - self.critic(data(number, 1)).mean()).backward()
        judged.step()
        made.zero_grad(set_to_none=True)
        (-self.critic(self.maker(data(number, 2))).mean()).backward()
        made.step()


class TwoBackwards(Trained):
    """A forward and a backward twice before the optimizer's step, all of them averaged."""

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        for part in range(2):
            yield self.model(data(number, part)).square().mean()


class Penalty(Trained):
    """A gradient penalty: the loss has a gradient in it (``create_graph``)."""

    def built(self) -> nn.Module:
        return stack(4, 1)

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        given = data(number).requires_grad_()
        output = self.model(given)
        slope = torch.autograd.grad(output.sum(), given, create_graph=True)[0]
        yield output.mean() + slope.square().mean()


class Accumulation(Trained):
    """Two micro-batches a step, the first one without a reduction, with enough steps for looks of the drift watch."""

    def built(self) -> nn.Module:
        return stack(6)

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        with self.model.no_sync():
            yield self.model(data(number)).square().mean()
        yield self.model(data(number, 1)).square().mean()


class Built(Trained):
    """DDP is built on a side stream, as Lightning does, and trained on the default one."""

    def __init__(self, mode: Mode) -> None:
        self.late = card.Sleep()
        with card.side_stream():
            super().__init__(mode)

    def built(self) -> nn.Module:
        return models.Branches()

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        loss = self.model(data(number), (number + world.rank()) % 3).square().mean()
        self.late(_LATE)
        yield loss


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
        return [_on(card.side_stream(), part, values) for part in (self.one, self.other)]


def _on(stream: ContextManager[None], part: Any, values: torch.Tensor) -> torch.Tensor:
    with stream:
        output: torch.Tensor = part(values)
    return output


class Outputs(Trained):
    """The outputs of one forward were computed on two side streams."""

    def __init__(self, mode: Mode) -> None:
        self.late = card.Sleep()
        super().__init__(mode)

    def built(self) -> nn.Module:
        return Two()

    def losses(self, number: int) -> Iterator[torch.Tensor]:
        one, other = self.model(data(number))
        self.late(_LATE)
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


class Callables(Trained):
    """Parts of the model are graphs before it is wrapped."""

    def built(self) -> Any:
        model: Any = stack(4).to(world.device()).train()
        model[2] = card.graphed(model[2], data(0).requires_grad_())
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
        self.tensors = held(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        self.replay = card.captured(self._step)

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
        how: Dict[str, Any] = {"mode": "reduce-overhead"} if card.here() else {"backend": "eager"}
        # The compiler splits graphs where buckets end, and refuses limits below that of the first bucket.
        inner = wrapped(stack(4), mode, 25.0)
        self.model: Any = torch.compile(inner, **how)
        self.optimizer, self.tensors = sgd(inner), held(inner)


KINDS: Dict[str, alike.Make] = {
    "siamese, 12 buffers": Siamese,
    "GAN": Gan,
    "two backwards": TwoBackwards,
    "gradient penalty": Penalty,
    "accumulation": Accumulation,
    "DDP built on a side stream": Built,
    "whole loop on a side stream": Whole,
    "outputs of two streams": Outputs,
    "captures while a trace is written": Captures,
    "make_graphed_callables": Callables,
    "whole step captured": WholeStep,
    "reduce-overhead": Compiled,
}
