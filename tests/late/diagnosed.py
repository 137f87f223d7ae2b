"""Programs that DDP ends with one of its three errors; with the lines of the diagnosis in TEST_LINES they are cured.

A line is evaluated as it stands: ``model`` is the module that is wrapped, ``function`` and ``inputs`` are what is
checkpointed, and so on.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

Record = Dict[str, Any]
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
    """A stack with an auxiliary head.

    Args:
        depth: the number of layers.
        aux: whether it has the head.
    """

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
    record["weights"] = [float(p.detach().double().sum()) for p in model.parameters()]


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


class Deep(nn.Module):
    """A layer with a stochastic depth of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.stochastic_depth_rate = 0.5
        self.draws = torch.Generator().manual_seed(5)

    def forward(self, x: Any) -> Any:
        skipped = self.training and float(torch.rand(1, generator=self.draws)) < self.stochastic_depth_rate
        return x if skipped else x + self.linear(x)


def layerdrop(record: Record) -> None:
    trained(record, wrap(Dropping()), lambda model, step: model(batch(step)).sum())


def stochastic_depth(record: Record) -> None:
    net = Net(aux=False)
    net.layers = nn.ModuleList([nn.Linear(SIZE, SIZE), Deep()])
    trained(record, wrap(net), lambda model, step: model(batch(step)).sum())


def wav2vec2(record: Record) -> None:
    """LayerDrop of a real encoder, whose rate is in its configuration, with ddpfix's own draws or without."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(16,),
        # As in compared.py.
        feat_extract_activation="relu",
        conv_stride=(5,),
        conv_kernel=(10,),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        layerdrop=0.5,
        mask_time_prob=0.0,
    )
    torch.manual_seed(1)
    net = Wav2Vec2Model(config).train()
    if hasattr(net, "masked_spec_embed"):
        net.masked_spec_embed.requires_grad_(False)
    trained(record, wrap(net), lambda model, step: model(torch.ones(1, 400))[0].sum())


def branch(record: Record) -> None:
    """A head that is used in the first three steps."""
    trained(record, wrap(Net()), lambda model, step: model(batch(step), aux=step < 2).sum())


def never(record: Record) -> None:
    trained(record, wrap(Net()), lambda model, step: model(batch(step)).sum())


class Two(Net):
    """Has a second output."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        y = super().forward(x)
        return {"main": y, "extra": self.aux(x)}


def outside(record: Record) -> None:
    def loss(model: Any, step: int) -> Any:
        output = model(batch(step))
        return output["main"].sum()

    trained(record, wrap(Two()), loss)


def dropped(record: Record) -> None:
    """The same, and the program keeps nothing but the first output."""
    trained(record, wrap(Two()), lambda model, step: model(batch(step))["main"].sum())


class Lost(Net):
    """Uses a head without gradient."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        with torch.no_grad():
            shift = self.aux(x)
        return super().forward(x) + shift


def lost(record: Record) -> None:
    trained(record, wrap(Lost()), lambda model, step: model(batch(step)).sum())


class Beside(Net):
    """Has a parameter of its own that is used in no step."""

    def __init__(self) -> None:
        super().__init__(aux=False)
        self.mask = nn.Parameter(torch.ones(SIZE))


def beside(record: Record) -> None:
    trained(record, wrap(Beside()), lambda model, step: model(batch(step)).sum())


def many(record: Record) -> None:
    """More parameters than torch names."""
    trained(record, wrap(Net(80, aux=False)), lambda model, step: model(batch(step), range(10, 80)).sum())


def one_rank(record: Record) -> None:
    """The first rank alone leaves a layer out."""
    skips = [] if distributed.get_rank() else [1]
    trained(record, wrap(Net(aux=False)), lambda model, step: model(batch(step), skips).sum())


def each_its_own(record: Record) -> None:
    """Each rank leaves out another layer."""
    skips = [1 + distributed.get_rank()]
    trained(record, wrap(Net(aux=False)), lambda model, step: model(batch(step), skips).sum())


class Reentrant(Net):
    def call(self, layer: Any, x: Any) -> Any:
        return reentrant(layer, x)


def unused_and_reentrant(record: Record) -> None:
    """A module that never runs beside reentrant checkpoints, which the flag excludes."""

    def loss(model: Any, step: int) -> Any:
        return model(batch(step).requires_grad_()).sum()

    trained(record, wrap(Reentrant()), loss)


# "Expected to mark a variable ready only once".


class Twice(Net):
    """The second layer stands in two checkpoints."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        x = self.layers[0](x)
        for _ in range(2):
            x = torch.tanh(reentrant(self.layers[1], x))
        return super().forward(x, [0, 1])


def reentrant_twice(record: Record) -> None:
    trained(record, wrap(Twice(aux=False)), lambda model, step: model(batch(step)).sum())


def reentrant_and_flag(record: Record) -> None:
    def loss(model: Any, step: int) -> Any:
        return model(batch(step).requires_grad_()).sum()

    trained(record, wrap(Reentrant(), find_unused_parameters=True), loss)


def outside_forward(record: Record) -> None:
    """The loss uses a part of the model by itself."""

    def loss(model: Any, step: int) -> Any:
        return model(batch(step)).sum() + model.module.aux(batch(step)).sum()

    trained(record, wrap(Net(), find_unused_parameters=True), loss)


def two_forwards(record: Record) -> None:
    """The two forwards of a step use all layers together."""

    def loss(model: Any, step: int) -> Any:
        return model(batch(step), [1]).sum() + model(batch(step), [2]).sum()

    trained(record, wrap(Net(aux=False), find_unused_parameters=True), loss)


def two_backwards(record: Record) -> None:
    """Two losses with parameters in common."""

    def loss(model: Any, step: int) -> Any:
        output = model(batch(step))
        first_loss, second_loss = output["main"].sum(), output["extra"].sum()
        for line in lines("(first_loss"):
            eval(line, {"first_loss": first_loss, "second_loss": second_loss})
            return None
        first_loss.backward(retain_graph=True)
        return second_loss + first_loss

    trained(record, wrap(Two()), loss)


def within(record: Record, **given: Any) -> None:
    """The program prepares DDP and calls backward within the wrapped model's own forward."""
    net = Net()

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> None:
            loss = self.net(x).sum()
            wrapper.reducer._rebuild_buckets()
            for line in lines("model.reducer"):
                eval(line, {"model": wrapper, "loss": loss})
                break
            else:
                wrapper.reducer.prepare_for_backward([])
            loss.backward()

    def loss(model: Any, step: int) -> None:
        model.require_backward_grad_sync = False
        model(batch(step))

    wrapper = wrap(Step(), **given)
    trained(record, wrapper, loss)


def within_with_the_flag(record: Record) -> None:
    """The same with the flag, where DDP is told of no output."""
    within(record, find_unused_parameters=True)


# "Your training graph has changed".


def static_new(record: Record) -> None:
    """A layer that the first step skips."""
    skips = [[1], [1], [], []]
    net = Net(aux=False)
    trained(record, wrap(net, static_graph=True), lambda model, step: model(batch(step), skips[step]).sum())


def static_less(record: Record) -> None:
    """A layer that the third step skips."""
    skips: List[List[int]] = [[], [], [1], []]
    net = Net(aux=False)
    trained(record, wrap(net, static_graph=True), lambda model, step: model(batch(step), skips[step]).sum())


def static_layerdrop(record: Record) -> None:
    trained(record, wrap(Dropping(), static_graph=True), lambda model, step: model(batch(step)).sum())


def static_reentrant(record: Record) -> None:
    """A checkpoint hides the layers, so that the graph of the loss does not show which one is new."""
    skips = [[1], [1], [], []]

    def loss(model: Any, step: int) -> Any:
        return model(batch(step).requires_grad_(), skips[step]).sum()

    trained(record, wrap(Reentrant(aux=False), static_graph=True), loss)


def explicit_false(record: Record) -> None:
    """The user's own False, which stays."""
    net = wrap(Net(), find_unused_parameters=False)
    trained(record, net, lambda model, step: model(batch(step)).sum())
