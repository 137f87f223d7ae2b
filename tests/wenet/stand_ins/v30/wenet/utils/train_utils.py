"""``wrap_cuda_model`` with the signature of WeNet 3.0, and what it gives DDP."""

from __future__ import annotations

from typing import Any

import torch


def wrap_cuda_model(args: Any, model: torch.nn.Module) -> Any:
    grad_ckpt = getattr(model.encoder, "gradient_checkpointing", False)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=not grad_ckpt)
    return wrapped, torch.device("cpu")
