"""CUDA graphs beside DDP: captures, callables that are graphs, a whole step, and the compiler's own graphs."""

from __future__ import annotations

from typing import Any, Dict

import torch

from tests.gpu import alike, card, world
from tests.gpu.alike import Program, Trained, data, held, sgd, stack, wrapped
from tests.gpu.modes import Mode

# As torch's manual asks for, before a step with DDP is captured.
_WARM = 11


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    return alike.run(cell, KINDS[cell["kind"]])


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
    "captures while a trace is written": Captures,
    "make_graphed_callables": Callables,
    "whole step captured": WholeStep,
    "reduce-overhead": Compiled,
}
