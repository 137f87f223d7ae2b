"""What the Executor of WeNet 3 takes from here, with its faults: a barrier with a time limit, read where it is gone."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import distributed


def wenet_join(group_join: Any, info_dict: Dict[str, Any]) -> bool:
    if info_dict["batch_idx"] == 0 or info_dict["train_engine"] == "torch_ddp":
        return False
    try:
        distributed.monitored_barrier(group=group_join, timeout=group_join.options._timeout)
    except RuntimeError as error:
        print(error)
        return True
    return False


def update_parameter_and_lr(model: Any, optimizer: Any, scheduler: Any, info_dict: Dict[str, Any]) -> None:
    if info_dict["train_engine"] == "torch_ddp":
        torch.nn.utils.clip_grad_norm_(model.parameters(), info_dict["grad_clip"])
    else:
        model.clip_grad_norm_(info_dict["grad_clip"])
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()


def wrap_cuda_model(args: Any, model: torch.nn.Module, configs: Any = None) -> Any:
    grad_ckpt = getattr(model.encoder, "gradient_checkpointing", False)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=not grad_ckpt)
    return wrapped, torch.device("cpu")


def add_lora_args(parser: Any) -> Any:
    parser.add_argument("--use_lora", default=False, type=bool)
    parser.add_argument("--lora_rank", default=8, type=int)
    return parser


def add_fsdp_args(parser: Any) -> Any:
    parser.add_argument("--fsdp_sync_module_states", default=True, type=bool)
    return parser
