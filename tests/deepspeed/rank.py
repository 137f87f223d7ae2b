"""One rank, which trains models in DeepSpeed's engine beside the same models made of the layers that ran.

The reference is averaged by hand. DeepSpeed is imported once; each scenario runs in a forked process.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from pathlib import Path
from typing import Any, ContextManager, Dict

import deepspeed
import torch
from torch import distributed, nn

from tests.sharded import wraps
from tests.support import serving, zoo


class Own(nn.Module):
    """An encoder of no toolkit whose layers are skipped by a draw."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        # Runs always: a step may skip all layers.
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        frames = self.first(frames)
        for layer in self.layers:
            if self.training and torch.rand(1).item() < self.rate:
                continue
            frames = frames + layer(frames)
        return frames


class OfOwn:
    """What an entry of the zoo has, for that encoder."""

    def build(self, rate: float, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Own(rate).train()

    def batch(self, seed: int) -> Dict[str, torch.Tensor]:
        return {"frames": torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed))}

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return (output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum()


class Groups:
    """One data parallel group of all ranks, told as Megatron tells its groups."""

    def __init__(self) -> None:
        alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
        self.get_model_parallel_group = lambda: alone[distributed.get_rank()]

    get_data_parallel_world_size = staticmethod(distributed.get_world_size)
    get_data_parallel_rank = staticmethod(distributed.get_rank)
    get_data_parallel_group = staticmethod(lambda: distributed.group.WORLD)
    get_model_parallel_world_size = staticmethod(lambda: 1)
    get_model_parallel_rank = staticmethod(lambda: 0)


class Run:
    """One model in an engine and its reference."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan, self.record = plan, plan["found"]
        self.entry: Any = OfOwn() if plan["model"] == "own" else zoo.tiny_model(plan["model"])
        # A model that skips nothing by itself.
        self.alone, inner = self.entry.build(rate=0.0, seed=3), self.entry.build(rate=plan["rate"], seed=3)
        self.ran = wraps.Ran(inner)
        if plan["reentrant"]:
            inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        if plan["told"]:
            from transformers.integrations import HfDeepSpeedConfig

            # Kept as long as the model, as transformers asks for.
            self.told = HfDeepSpeedConfig(self.settings())
        self.engine, *_ = deepspeed.initialize(
            model=inner,
            optimizer=self.optimizer_of(inner),
            config=self.settings(),
            dist_init_required=False,
            mpu=Groups() if plan["grouped"] else None,
        )
        self.optimizer = self.optimizer_of(self.alone)
        torch.manual_seed(50 + (0 if plan["equal"] else distributed.get_rank()))
        self.record.update({name: [] for name in ("ran", "loss", "apart")})
        self.record["layers"] = [name for name, _ in wraps.layers_of(inner)]

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-3)

    def settings(self) -> Dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self.plan["accum"],
            # The optimizer is torch's, which ZeRO has not tested.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": self.plan["stage"], "stage3_param_persistence_threshold": 0},
        }

    def steps(self) -> None:
        if self.plan["looks"]:
            # A forward of the first rank, for which the others wait in a collective of the program's own.
            if distributed.get_rank() == 0:
                self.engine(**self.entry.batch(0))
            distributed.barrier()
        for number in range(self.plan["steps"]):
            self.optimizer.zero_grad()
            for index in range(self.plan["accum"]):
                if self.plan["evaluated"]:
                    self.evaluate(number)
                self.micro_batch(number * self.plan["accum"] + index)
            self.average()
            self.optimizer.step()
            self.record["apart"].append(self.apart())
        self.record["decided"] = wraps.decided(self.engine)

    def evaluate(self, number: int) -> None:
        """Nothing of it may count as a training forward."""
        self.engine.eval()
        for _ in range(1 + distributed.get_rank()):
            with torch.no_grad():
                self.engine(**self.entry.batch(number))
        self.engine.train()

    def micro_batch(self, number: int) -> None:
        if not self.plan["equal"]:
            # What one rank draws by itself is not what the other draws.
            torch.rand(1 + 3 * distributed.get_rank())
        inputs = self.entry.batch(1000 * distributed.get_rank() + number)
        self.ran.take()
        loss = self.entry.loss(self.engine(**inputs))
        ran = self.ran.take()
        self.engine.backward(loss)
        self.engine.step()
        with wraps.only(self.alone, ran):
            (self.entry.loss(self.alone(**inputs)) / self.plan["accum"]).backward()
        self.record["ran"].append(ran)
        self.record["loss"].append(float(loss.detach()))

    def average(self) -> None:
        """The reference gets the mean of the ranks' gradients; where a rank has none, DeepSpeed has a zero."""
        for parameter in self.alone.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()

    def apart(self) -> float:
        """The largest difference of a parameter from the reference's."""
        model, whole = self.engine.module, contextlib.nullcontext  # type: Any, Any
        if self.plan["stage"] == 3:
            whole = deepspeed.zero.GatheredParameters
        context: ContextManager[Any] = whole(list(model.parameters()))
        with context, torch.no_grad():
            mine = dict(model.named_parameters())
            return max(float((mine[name] - value).abs().max()) for name, value in self.alone.named_parameters())


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """Run one scenario in this (forked) process."""
    if scenario["layerdrop"]:
        import ddpfix

        ddpfix.activate(layerdrop=scenario["layerdrop"])
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", timeout=datetime.timedelta(seconds=20))
    Run(scenario).steps()


def main() -> None:
    import torch.utils.checkpoint

    # It would compile a kernel for shared memory when a process group is made, which takes minutes.
    deepspeed.ops.__compatible_ops__ = {}
    assert torch.utils.checkpoint and all(zoo.tiny_model(name).build() is not None for name in ("bart", "wavlm"))
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
