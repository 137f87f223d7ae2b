"""Trains ``torch.compile(DistributedDataParallel(model))`` on two ranks and prints what torch.compile made of it.

Run by torch elastic: ``compiled.py PLAN``, where PLAN is a dict as JSON (see :func:`tests.late.test_compile.plan`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from typing import Any, Dict, List

import torch
from torch import distributed, nn

WIDTH = 512


class Stack(nn.Module):
    """Blocks, and one that is left out where ``skip`` says so."""

    def __init__(self, spare: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        if spare:
            self.never = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return {"out": x}


def model_of(plan: Dict[str, Any]) -> Any:
    if plan["model"] == "wav2vec2":
        from tests.late.compared import wav2vec2

        return wav2vec2(plan["rate"])
    return Stack(spare=plan["model"] == "spare")


def batch(plan: Dict[str, Any], number: int) -> Any:
    generator = torch.Generator().manual_seed(10 * number + distributed.get_rank())
    if plan["model"] == "wav2vec2":
        return torch.randn(2, 400, generator=generator)
    return torch.randn(4, WIDTH, generator=generator)


def train(plan: Dict[str, Any]) -> Dict[str, Any]:
    from torch._dynamo.utils import counters
    from torch.nn.parallel import DistributedDataParallel

    graphs: List[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    torch.manual_seed(3)
    # Some blocks share a bucket, and others have one of their own: DDP cuts the graph between them.
    wrapped = DistributedDataParallel(model_of(plan), bucket_cap_mb=2, **plan["ddp"])
    model = torch.compile(wrapped, backend=backend) if plan["compiled"] else wrapped
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    digests = []
    for number in range(plan["steps"]):
        torch.manual_seed(100 * number + distributed.get_rank())
        optimizer.zero_grad()
        output = model(batch(plan, number))
        value = output["out"] if "out" in output else output["last_hidden_state"]
        (value * torch.linspace(-1.0, 1.0, value.numel()).view_as(value)).mean().backward()
        optimizer.step()
        digests.append(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
    return {
        "digests": digests,
        "graphs": len(graphs),
        "frames": counters["frames"]["total"],
        "breaks": sum(counters["graph_break"].values()),
        "flag": wrapped.find_unused_parameters,
    }


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan["settings"] is not None:
        import ddpfix

        ddpfix.activate(log="warning", **plan["settings"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    try:
        record = train(plan)
    except RuntimeError as error:
        record = {"error": str(error)}
    print("FOUND " + json.dumps({"rank": distributed.get_rank(), **record}), flush=True)


if __name__ == "__main__":
    main()
