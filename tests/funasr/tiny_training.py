"""FunASR's real trainers around a model of one parameter, in this process: what an epoch does is known by hand."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.funasr import trained


class TinyModel(torch.nn.Module):
    """The loss is ``slope`` times a parameter, by way of a matrix product; notes in what precision it is computed."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)
        self.slope = slope
        self.seen: List[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> Any:
        out = self.layer(x)
        self.seen.append(out.dtype)
        loss = out.float().sum() * self.slope
        return loss, {"acc": loss.detach().view(1), "loss": loss.detach().view(1)}, torch.tensor([1.0])


class Batches:
    """A loader of ``count`` equal batches, with the parts of one that the trainers ask for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.batch_sampler = self

    def set_epoch(self, epoch: int) -> None:
        pass

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return iter([{"x": torch.ones(1, 1)} for _ in range(self.count)])


def module(entry: str) -> ModuleType:
    import funasr  # noqa: F401

    return import_module("funasr.train_utils." + entry.replace("train", "trainer", 1))


def entries() -> List[str]:
    """Those of :func:`trained.entries`, and the one that 1.0.17 alone has a trainer of its own for."""
    return [*trained.entries(), "train_llm"] if trained.release() == (1, 0, 17) else trained.entries()


class Run:
    """A trainer of this release with a tiny model and plain SGD at a learning rate of 1."""

    def __init__(self, entry: str, folder: Path, scaler: Any = None, slope: float = 1.0, **conf: Any) -> None:
        self.model = TinyModel(slope)
        self.wrapper: Any = DistributedDataParallel(self.model) if conf.get("use_ddp") else self.model
        self.optim = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optim, lambda step: 1.0)
        self.scaler, self.loader = scaler, Batches(6)
        conf = {"log_interval": 1000, "accum_grad": 1, "resume": False, **conf}
        made = module(entry).Trainer
        # Before 1.0.18 a trainer holds what it works on.
        self.holds = trained.release() < (1, 0, 18) and entry != "train_llm"
        parts: Dict[str, Any] = {"local_rank": 0, "output_dir": str(folder), **conf}
        if self.holds:
            parts.update(model=self.wrapper, optim=self.optim, scheduler=self.scheduler)
            parts.update(dataloader_train=self.loader, dataloader_val=self.loader)
        else:
            parts["device"] = "cpu"
        self.trainer = made(**parts)
        if self.holds:
            self.trainer.scaler = scaler

    def train(self) -> List[float]:
        """An epoch; returns the parameter after each optimizer step."""
        steps: List[float] = []
        hook = self.optim.register_step_post_hook(lambda *_: steps.append(self.weight))
        if self.holds:
            self.trainer._train_epoch(0)
        else:
            self.trainer.train_epoch(optim=self.optim, scheduler=self.scheduler, scaler=self.scaler, **self._parts())
        hook.remove()
        return steps

    def validate(self) -> None:
        if self.holds:
            self.trainer._validate_epoch(0)
        else:
            parts = self._parts()
            del parts["dataloader_train"]
            self.trainer.validate_epoch(**parts)

    def _parts(self) -> Dict[str, Any]:
        loaders = {"dataloader_train": self.loader, "dataloader_val": self.loader}
        writer: Optional[Any] = None
        return {"model": self.wrapper, "epoch": 0, "writer": writer, **loaders}

    @property
    def weight(self) -> float:
        return float(self.model.layer.weight.item())
