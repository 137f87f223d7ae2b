"""One of two ranks: trains the demo's model, with the trace on and off by turns of some steps.

Both live in one process, so that the load of the machine falls on both alike. In a turn without it the recorder is off:
what is left is the wrappers, which ask whether it is on.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ddpfix
from ddpfix import engine
from ddpfix.cli.demo.ranks import SCRIPT


def demo() -> Any:
    """The demo's own script, as a module."""
    found = importlib.util.spec_from_file_location("demo_train", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    # Its own limit is that of a short run.
    faulthandler.cancel_dump_traceback_later()
    return module


class Small(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model whose step is little more than DDP's own work."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, values: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.layer(values).mean()


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    dist.init_process_group("gloo")
    ddpfix.activate(log="warning", trace=folder / "trace")
    torch.manual_seed(7)
    script = demo()
    model = script.wavlm() if plan["model"] == "demo" else Small()
    wrapped = DistributedDataParallel(model.train())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    batches = _batches(script, plan["model"])
    active = engine.current()
    assert active is not None
    from ddpfix.patches.torch.tracing import trace

    recorder = trace._recorder(active.sites["torch.trace"])

    def step() -> None:
        output = wrapped(**next(batches))
        (output.loss if plan["model"] == "demo" else output).backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(plan["warm"]):
        step()
    turns: Dict[str, List[List[float]]] = {"on": [], "off": []}
    for turn in range(plan["turns"]):
        for name in ("on", "off") if turn % 2 else ("off", "on"):
            dist.barrier()
            recorder.on = name == "on"
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(plan["steps"]):
                step()
            turns[name].append([(time.perf_counter() - wall), time.process_time() - cpu])
    recorder.on = True
    if os.environ["RANK"] == "0":
        (folder / "turns.json").write_text(json.dumps(turns))
    ddpfix.deactivate()
    dist.destroy_process_group()


def _batches(script: Any, model: str) -> Any:
    data = script.Tones(10**6)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, seed=7, shuffle=False), collate_fn=data.collate)
    if model == "demo":
        return iter(loader)
    return itertools.repeat({"values": torch.randn(4, 16, 8), "attention_mask": torch.ones(4, 16, dtype=torch.long)})


if __name__ == "__main__":
    main()
