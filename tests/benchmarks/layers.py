"""What shared decisions cost in a training forward: a layer, and once a forward.

The layers are replaced by ones that hand their input on, so that what is timed is the loop around them: in stock a
draw and a comparison a layer, with ddpfix the same draw and our answer to it. Stock compares tensors and we compare
numbers, so a forward may well be faster with ddpfix.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import torch
from torch import nn

from ddpfix import engine
from ddpfix.layerdrop import cover, training
from tests.benchmarks.measure import take_turns
from tests.benchmarks.report import Figure
from tests.support import zoo

_MANY = 24
# No draw is below the first, and every draw is below the second.
_RATES = {"kept": 1e-30, "skipped": 1.0}


@dataclass(frozen=True)
class Stack:
    """An encoder of the zoo whose loop is timed: its inputs, and what is expensive around the loop."""

    name: str
    inputs: Mapping[str, zoo.Array]
    around: Tuple[str, ...] = ()

    def build(self, rate: float, depth: int) -> nn.Module:
        encoder = zoo.tiny_model(self.name).build(rate).get_submodule("encoder")
        for name in self.around:
            setattr(encoder, name, nn.Identity())
        free = _Free(_in_tuple(encoder, self.arguments()))
        encoder.layers = nn.ModuleList([free] * depth)
        return encoder

    def arguments(self) -> Dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {name: array.make(generator) for name, array in self.inputs.items()}


STACKS = (
    Stack("wav2vec2", {"hidden_states": zoo.floats(2, 4, 16)}, ("pos_conv_embed",)),
    Stack("bart", {"input_ids": zoo.ids(2, 7)}),
)


class _Free(nn.Module):  # type: ignore[misc, unused-ignore]
    """A layer that costs nothing, and returns what the real one would: a tensor, or a tuple that begins with one."""

    def __init__(self, in_tuple: bool) -> None:
        super().__init__()
        self.in_tuple = in_tuple

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
        return (hidden,) if self.in_tuple else hidden


def _in_tuple(encoder: Any, arguments: Dict[str, torch.Tensor]) -> bool:
    found: List[Any] = []
    handle = encoder.layers[0].register_forward_hook(lambda *seen: found.append(seen[-1]))
    training = encoder.training
    encoder.eval()(**arguments)
    encoder.train(training)
    handle.remove()
    return isinstance(found[0], tuple)


@contextmanager
def _active() -> Iterator[None]:
    """ddpfix is at work, torch uses one core, and all is as before in the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine.activate(log="off")
    try:
        yield
    finally:
        engine.deactivate()
        torch.set_num_threads(threads)


def a_layer(folder: Path, quick: bool) -> List[Figure]:
    """A forward with free layers, with ddpfix above stock."""
    with _active():
        return [figure for stack in STACKS for figure in _of_stack(stack, quick)]


def _of_stack(stack: Stack, quick: bool) -> Iterator[Figure]:
    for what, rate in _RATES.items():
        once = _once_us(stack, rate, quick)
        stock, ours = _least(stack.build(rate, _MANY), stack.arguments(), quick)
        note = f"a forward with {_MANY} free layers: {ours:.0f} us, in stock {stock:.0f} us"
        yield Figure(f"{stack.name}, above stock, a {what} layer", (ours - stock - once) / _MANY, "us", 4, note)
        yield Figure(f"{stack.name}, above stock, once a forward", once, "us", note="without any layer")


def _once_us(stack: Stack, rate: float, quick: bool) -> float:
    """What does not depend on the number of layers: the step, the call, and what is kept for a recomputation."""
    stock, ours = _least(stack.build(rate, 0), stack.arguments(), quick)
    return ours - stock


def _least(encoder: nn.Module, arguments: Dict[str, torch.Tensor], quick: bool) -> Tuple[float, float]:
    """The least microseconds of a forward in stock and of one as a step of a wrapped model."""
    owner = next(level for level in type(encoder).__mro__ if level in cover.COVERED)
    ours, stock = vars(owner)["forward"], cover.COVERED[owner].original
    replica = training.Replica(encoder, 1)

    def step() -> None:
        with training.step(replica):
            encoder(**arguments)
        if replica.last is not None:
            # As if its backward had begun: the next step may forget it.
            replica.last.reached = True

    def timed(forward: Any, call: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            owner.forward = forward  # type: ignore[attr-defined]
            return _loop_us(call, 20 if quick else 50)

        return run

    try:
        runs = {"stock": timed(stock, lambda: encoder(**arguments)), "ours": timed(ours, step)}
        turns = take_turns(runs, 2 if quick else 50)
    finally:
        owner.forward = ours  # type: ignore[attr-defined]
    return min(turns["stock"]), min(turns["ours"])


def _loop_us(call: Callable[[], Any], times: int) -> float:
    """Microseconds of CPU a call, after a few calls in which the interpreter adapts to it."""
    for _ in range(10):
        call()
    begun = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begun) / times * 1e6
