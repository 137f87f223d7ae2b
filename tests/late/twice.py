"""A module in several reentrant checkpoints of one step, under DDP without the flag."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, Callable, Dict, Optional

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from tests.late.parting import Record, batch, sgd

STEPS = 4


class Halved(CheckpointFunction):  # type: ignore[misc]
    """A checkpoint of the user's own, whose backward returns half of the gradient."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = CheckpointFunction.backward(ctx, *gradients)
        return tuple(each * 0.5 if isinstance(each, torch.Tensor) else each for each in found)


class Net(nn.Module):
    """A block that is checkpointed between two layers that are not.

    Args:
        way: how the block is handed to ``checkpoint``; "" for no checkpoint.
        uses: how often it is used in a forward.
    """

    def __init__(self, way: str, uses: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 6))
        self.blocks = nn.ModuleList([self.block])
        self.way, self.uses = way, uses

    def run(self, hidden: torch.Tensor) -> Any:
        return self.block(hidden)

    def nested(self, hidden: torch.Tensor) -> Any:
        return checkpoint(self.block, hidden, use_reentrant=True)

    def handed(self) -> Callable[..., Any]:
        block = self.block
        ways: Dict[str, Callable[..., Any]] = {
            "module": block,
            "call": block.__call__,
            "partial": functools.partial(block),
            "closure": lambda hidden: block(hidden),
            "attribute": lambda hidden: self.block(hidden),
            "method": self.run,
            "nested": self.nested,
            "unknown": lambda hidden: self.blocks[0](hidden),
        }
        return ways[self.way]

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        if self.way == "halved":
            return self.last(Halved.apply(self.block, True, hidden))
        for _ in range(self.uses):
            hidden = checkpoint(self.handed(), hidden, use_reentrant=True) if self.way else self.block(hidden)
        return self.last(hidden)


class Bert(nn.Module):
    """transformers' own encoder, which checkpoints each layer.

    Args:
        way: "" for no checkpoints.
    """

    def __init__(self, way: str) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 8}
        self.bert = BertModel(BertConfig(vocab_size=16, max_position_embeddings=8, **sizes), add_pooling_layer=False)
        if way:
            kind = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
            chooses = "gradient_checkpointing_kwargs" in self.bert.gradient_checkpointing_enable.__code__.co_varnames
            self.bert.gradient_checkpointing_enable(**(kind if chooses else {}))

    def forward(self, x: torch.Tensor) -> Any:
        return self.bert(input_ids=(x * 4).long().abs() % 16)[0]


def siamese(model: Any, step: int) -> Any:
    return (model(batch(step)) - model(batch(step + 50))).pow(2).mean()


def single(model: Any, step: int) -> Any:
    return model(batch(step)).pow(2).mean()


def looked_at(model: Any, step: int) -> Any:
    """The first forward is alive in the backward, which does not come to it."""
    looked_at.output = model(batch(step + 50))  # type: ignore[attr-defined]
    return model(batch(step)).pow(2).mean()


def trained(
    record: Record,
    way: str,
    loss: Callable[[Any, int], Any] = siamese,
    uses: int = 1,
    micro: int = 1,
    ddp: Optional[Dict[str, Any]] = None,
    bert: bool = False,
) -> None:
    model = DistributedDataParallel(Bert(way) if bert else Net(way, uses), **(ddp or {}))
    optimizer, record["steps"] = sgd(model), []
    torch.manual_seed(5 + distributed.get_rank())
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro):
            with model.no_sync() if part + 1 < micro else nullcontext():
                loss(model, micro * step + part).backward()
        optimizer.step()
        record["steps"].append([float(p.detach().double().sum()) for p in model.parameters()])


LOOPS: Dict[str, Dict[str, Any]] = {
    **{way: {"way": way} for way in ("module", "call", "partial", "closure", "attribute", "method", "nested")},
    "in_one_forward": {"way": "module", "loss": single, "uses": 3},
    "accumulated": {"way": "module", "micro": 2},
    # Before 2.13 torch refuses two forwards of a model with buffers in front of one backward.
    "bert": {"way": "module", "bert": True, "ddp": {"broadcast_buffers": False}},
    "views": {"way": "module", "ddp": {"gradient_as_bucket_view": True}},
}
# Plain torch trains these.
RIGHT: Dict[str, Dict[str, Any]] = {
    "static": {"way": "module", "loss": single, "uses": 2, "ddp": {"static_graph": True}},
    "looked_at": {"way": "module", "loss": looked_at},
    "once": {"way": "module", "loss": single},
    "halved": {"way": "halved", "loss": single},
}
OTHERS: Dict[str, Dict[str, Any]] = {"unknown": {"way": "unknown"}}
for _name, _loop in {**LOOPS, **RIGHT, **OTHERS}.items():
    globals()[_name] = functools.partial(trained, **_loop)
    # The same without checkpoints.
    globals()[f"kept_{_name}"] = functools.partial(trained, **{**_loop, "way": ""})
