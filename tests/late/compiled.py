"""Trains ``torch.compile(DistributedDataParallel(model))``, and records what torch.compile made of it."""

from __future__ import annotations

import functools
from typing import Any, Dict, List

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.late.compared import digest, wav2vec2

WIDTH = 512
STEPS = 4


class Stack(nn.Module):
    """Blocks, and, with ``spare``, one that is never used."""

    def __init__(self, spare: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        if spare:
            self.never = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return {"last_hidden_state": x}


def train(record: Dict[str, Any], build: Any, size: Any = (4, WIDTH), compiled: bool = True, **ddp: bool) -> None:
    from torch._dynamo.utils import counters

    graphs: List[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    # Some blocks share a bucket, and others have one of their own: DDP cuts the graph between them.
    wrapped = DistributedDataParallel(build(), bucket_cap_mb=2, **ddp)
    model = torch.compile(wrapped, backend=backend) if compiled else wrapped
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    record["steps"] = []
    for number in range(STEPS):
        torch.manual_seed(100 * number + distributed.get_rank())
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * number + distributed.get_rank())
        value = model(torch.randn(*size, generator=generator))["last_hidden_state"]
        (value * torch.linspace(-1.0, 1.0, value.numel()).view_as(value)).mean().backward()
        optimizer.step()
        record["steps"].append(digest(list(model.parameters())))
    record["graphs"], record["flag"] = len(graphs), wrapped.find_unused_parameters
    record["frames"], record["breaks"] = counters["frames"]["total"], sum(counters["graph_break"].values())


stack: Any = functools.partial(train, build=Stack)
static: Any = functools.partial(train, build=Stack, static_graph=True)
spare: Any = functools.partial(train, build=lambda: Stack(spare=True))
spare_eager: Any = functools.partial(spare, compiled=False)
layerdrop: Any = functools.partial(train, build=lambda: wav2vec2(0.5), size=(2, 400))
layerdrop_eager: Any = functools.partial(layerdrop, compiled=False)
