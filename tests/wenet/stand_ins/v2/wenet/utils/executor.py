"""An Executor with the names and signatures of WeNet 2.2, and its faults: ``model.join`` around the training loop."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Dict, Tuple

import torch


class Executor:
    def __init__(self) -> None:
        self.step = 0

    def train(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        data_loader: Any,
        device: Any,
        writer: Any,
        args: Dict[str, Any],
        scaler: Any,
    ) -> None:
        model.train()
        accum = args["accum_grad"]
        parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        with model.join() if parallel else nullcontext():
            for index, (_, feats, target, feats_lengths, target_lengths) in enumerate(data_loader):
                if len(target_lengths) == 0:
                    continue
                with nullcontext() if index % accum == 0 else model.no_sync():
                    (model(feats, feats_lengths, target, target_lengths)["loss"] / accum).backward()
                if index % accum == 0:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), args["grad_clip"])
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
                    self.step += 1

    def cv(self, model: Any, data_loader: Any, device: Any, args: Dict[str, Any]) -> Tuple[float, int]:
        model.eval()
        total, seen = 0.0, 1
        with torch.no_grad():
            for _, feats, target, feats_lengths, target_lengths in data_loader:
                loss = model(feats, feats_lengths, target, target_lengths)["loss"]
                total, seen = total + loss.item() * len(target_lengths), seen + len(target_lengths)
        return total, seen
