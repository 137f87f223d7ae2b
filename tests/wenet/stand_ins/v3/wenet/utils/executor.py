"""An Executor with the names and signatures of WeNet 3.1, and its faults: validation within ``model.join``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Dict

import torch
from torch import distributed
from wenet.utils.train_utils import update_parameter_and_lr, wenet_join


class Executor:
    def __init__(self, global_step: int = 0) -> None:
        self.step = global_step + 1

    def train(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        train_data_loader: Any,
        cv_data_loader: Any,
        writer: Any,
        configs: Dict[str, Any],
        scaler: Any,
        group_join: Any,
    ) -> None:
        model.train()
        info, accum = dict(configs), configs["accum_grad"]
        parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        with model.join() if parallel else nullcontext():
            for index, batch in enumerate(train_data_loader):
                info["batch_idx"] = index
                if wenet_join(group_join, info):
                    break
                if len(batch["target_lengths"]) == 0:
                    continue
                last = (index + 1) % accum == 0
                with nullcontext() if last else model.no_sync():
                    (model(batch, None)["loss"] / accum).backward()
                if last:
                    update_parameter_and_lr(model, optimizer, scheduler, info)
                    if (self.step + 1) % info.get("save_interval", sys.maxsize) == 0:
                        distributed.barrier()
                        self.cv(model, cv_data_loader, configs)
                        model.train()
                        distributed.barrier()
                    self.step += 1

    def cv(self, model: Any, cv_data_loader: Any, configs: Dict[str, Any]) -> Dict[str, float]:
        model.eval()
        with torch.no_grad():
            losses = [model(batch, None)["loss"].item() for batch in cv_data_loader]
        return {"loss": sum(losses) / len(losses)}
