"""Trains a model in DeepSpeed's engine beside the same model made of the layers that ran, averaged by hand."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, Dict, Iterator, List

import deepspeed
import torch
from torch import distributed, nn

from tests.deepspeed import models

OPTIMIZERS: Dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-3),
}


def run(scenario: Dict[str, Any]) -> None:
    """Fill ``found``: by micro-batch and step, the layers that ran, and how far all is from the reference."""
    torch.set_num_threads(1)
    if scenario["loop"] == "trainer":
        from tests.deepspeed import by_trainer

        by_trainer.run(scenario)
        return
    deepspeed.init_distributed("gloo", timeout=datetime.timedelta(seconds=20))
    training = Run(scenario, scenario["found"])
    if scenario["looks"]:
        training.look()
    for step in range(scenario["steps"]):
        training.step(step)
    training.record["decided"] = decided(training.engine)


class Run:
    """One model in an engine and its reference."""

    def __init__(self, plan: Dict[str, Any], record: Dict[str, Any]) -> None:
        self.plan, self.record = plan, record
        self.entry = models.named(plan["model"])
        self.alone = self.entry.reference(plan["rate"])
        inner = self.entry.build(plan["rate"])
        self.called: List[str] = []
        for name, layer in self.entry.layers(inner):
            observed = self.entry.observed(layer)
            observed.register_forward_hook(lambda *_, name=name: self.called.append(name))
        if plan["checkpointing"]:
            inner.gradient_checkpointing_enable(  # type: ignore[operator]
                gradient_checkpointing_kwargs={"use_reentrant": plan["checkpointing"] == "layers-reentrant"}
            )
        if plan["told"]:
            from transformers.integrations import HfDeepSpeedConfig

            # Kept as long as the model, as transformers asks for.
            self.told = HfDeepSpeedConfig(self.settings())
        make = OPTIMIZERS[plan["optimizer"]]
        self.engine, *_ = deepspeed.initialize(
            model=inner,
            optimizer=make(inner.parameters()),
            config=self.settings(),
            dist_init_required=False,
            mpu=Groups() if plan["grouped"] else None,
        )
        self.optimizer = make(self.alone.parameters())
        torch.manual_seed(50 + (0 if plan["equal"] else distributed.get_rank()))
        self.record.update({name: [] for name in ("ran", "loss", "expected", "apart")})
        self.record["layers"] = [name for name, _ in self.entry.layers(inner)]

    def settings(self) -> Dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self.plan["accum"],
            # The optimizer is torch's, which ZeRO has not tested.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": self.plan["stage"], "stage3_param_persistence_threshold": 0},
            **self.plan["more"],
        }

    def look(self) -> None:
        """A forward of the first rank, for which the others wait in a collective of the program's own."""
        if distributed.get_rank() == 0:
            self.engine(**self.entry.batch(0))
        distributed.barrier()

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        for index in range(self.plan["accum"]):
            self.evaluate(number)
            self.micro_batch(number * self.plan["accum"] + index)
        average(self.alone)
        self.optimizer.step()
        self.record["apart"].append(self.apart())

    def evaluate(self, number: int) -> None:
        """Nothing of it may count as a training forward."""
        if not self.plan["evaluated"]:
            return
        self.engine.eval()
        for _ in range(1 + (distributed.get_rank() if self.plan["stage"] < 3 else 0)):
            with torch.no_grad():
                self.engine(**self.entry.batch(number))
        self.engine.train()

    def micro_batch(self, number: int) -> None:
        if not self.plan["equal"]:
            # What one rank draws by itself is not what the other draws.
            torch.rand(1 + 3 * distributed.get_rank())
        inputs = self.entry.batch(1000 * distributed.get_rank() + number)
        self.called.clear()
        loss = self.entry.loss(self.engine(**inputs))
        ran = list(self.called)
        self.engine.backward(loss)
        self.engine.step()
        with self.entry.only(self.alone, ran):
            expected = self.entry.loss(self.alone(**inputs))
            (expected / self.plan["accum"]).backward()
        for name, value in {"ran": ran, "loss": float(loss.detach()), "expected": float(expected.detach())}.items():
            self.record[name].append(value)

    def apart(self) -> float:
        return apart(self.engine.module, self.alone, self.plan["stage"])


class Groups:
    """One data parallel group of all ranks, told as Megatron tells its groups."""

    def __init__(self) -> None:
        self.alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]

    def get_data_parallel_group(self) -> Any:
        return distributed.group.WORLD

    def get_data_parallel_world_size(self) -> int:
        return int(distributed.get_world_size())

    def get_data_parallel_rank(self) -> int:
        return int(distributed.get_rank())

    def get_model_parallel_group(self) -> Any:
        return self.alone[distributed.get_rank()]

    def get_model_parallel_world_size(self) -> int:
        return 1

    def get_model_parallel_rank(self) -> int:
        return 0


def decided(engine: Any) -> Any:
    """What ddpfix says of the last forward; None where it has no say."""
    try:
        import ddpfix

        return sorted(f"{skip.module}.{skip.layer}".lstrip(".") for skip in ddpfix.skipped_layers(engine))
    except LookupError:
        return None


def average(alone: nn.Module) -> None:
    """The reference gets the mean of the ranks' gradients; where a rank has none, DeepSpeed has a zero."""
    for parameter in alone.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        distributed.all_reduce(parameter.grad)
        parameter.grad /= distributed.get_world_size()


def apart(model: nn.Module, alone: nn.Module, stage: int) -> float:
    """The largest difference of a parameter from the reference's."""
    with whole(model, stage), torch.no_grad():
        mine = dict(model.named_parameters())
        return max(float((mine[name] - value).abs().max()) for name, value in alone.named_parameters())


@contextlib.contextmanager
def whole(model: nn.Module, stage: int) -> Iterator[None]:
    """Within it each parameter is there as a whole."""
    if stage < 3:
        yield
    else:
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            yield
