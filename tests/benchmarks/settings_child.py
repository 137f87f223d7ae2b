"""One of some ranks: takes steps of one model wrapped by plain torch with the flag, and as users of ddpfix get it.

Both live in one process and take turns, so that the load of the machine falls on both alike.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch
from ddpfix.patches.torch.pipeline import ddp
from ddpfix.patches.torch.unused.states import REDUCTION
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpfix import engine
from tests.benchmarks import slowed
from tests.benchmarks.mode_child import Layer, peak

WIDTH, DEPTH = 256, 12


class Experts(nn.Module):  # type: ignore[misc, unused-ignore]
    """Blocks of four experts each; a step uses one expert of each block, and ranks use different ones."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.ModuleList(Layer(WIDTH) for _ in range(4)) for _ in range(DEPTH // 3))
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(WIDTH, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block[_CHOICE.randrange(len(block))](hidden)
        return self.head(hidden)


class OwnLayerDrop(nn.Module):  # type: ignore[misc, unused-ignore]
    """Skips layers by a list that the training loop makes, so that nobody can see that they are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Layer(WIDTH) for _ in range(DEPTH)), nn.Linear(WIDTH, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if _CHOICE.random() >= 0.5:
                hidden = layer(hidden)
        return self.head(hidden)


def wavlm() -> Any:
    """transformers' WavLM of half the width of WavLM-base: 12 layers of 7 MB."""
    from transformers import WavLMConfig, WavLMModel

    config = WavLMConfig(
        hidden_size=384, intermediate_size=1536, num_attention_heads=12, num_hidden_layers=DEPTH, layerdrop=0.5
    )
    return WavLMModel(config).train()


MODELS: Dict[str, Callable[[], Any]] = {"experts": Experts, "own LayerDrop": OwnLayerDrop, "WavLM": wavlm}
_CHOICE = random.Random()


class Arm:
    """One way to wrap the model."""

    def __init__(self, plan: Dict[str, Any], group: Any, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = MODELS[plan["model"]]()
        self.audio = plan["model"] == "WavLM"
        self.wrapped = DistributedDataParallel(
            self.model, process_group=group, bucket_cap_mb=plan.get("cap", 25), **options
        )

    def steps(self, count: int) -> float:
        """Milliseconds a step."""
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            self.wrapped.zero_grad(set_to_none=True)
            if self.audio:
                loss = self.wrapped(torch.randn(1, 4000)).last_hidden_state.square().mean()
            else:
                loss = self.wrapped(torch.randn(1, 8, WIDTH)).square().mean()
            loss.backward()
        return (time.perf_counter() - begun) / count * 1000


def measured(plan: Dict[str, Any]) -> Dict[str, Any]:
    """Steps of all arms in turns."""
    engine.deactivate()
    group = slowed.group(plan["bandwidth"]) if plan["bandwidth"] else None
    arms = {"torch + flag": Arm(plan, group, find_unused_parameters=True)}
    engine.activate(log="off", **plan["settings"])
    arms["ddpfix"] = Arm(plan, group)
    if plan.get("at_end"):
        arms["at the end"] = Arm(plan, group)
        model = ddp.of(arms["at the end"].wrapped)
        assert model is not None
        finalizer: Any = REDUCTION.of(model)
        finalizer._mark_at_start = lambda: None
    torch.manual_seed(dist.get_rank())
    _CHOICE.seed(dist.get_rank())
    for arm in arms.values():
        arm.steps(plan["warm"])
    turns: Dict[str, List[float]] = {name: [] for name in arms}
    for turn in range(plan["turns"]):
        for name in list(arms)[:: -1 if turn % 2 else 1]:
            turns[name].append(arms[name].steps(plan["steps"]))
    return {"plan": plan, "turns": turns, "flag": arms["ddpfix"].wrapped.find_unused_parameters, "memory": peak()}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = [measured(plan) for plan in json.loads(Path(folder, "plans.json").read_text())]
    if dist.get_rank() == 0:
        Path(folder, "settings.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
