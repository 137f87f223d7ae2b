"""The device and the launcher: each rank has its own GPU, and a launcher's options are understood by every release."""

from __future__ import annotations

import os
from typing import Optional

from ddpfix import log

from .line import Line
from .parser import Option

OPTIONS = (Option("local_rank", "one", real=False), Option("distributed_launch", "flag", real=False))


def local_rank() -> Optional[int]:
    """Return the local rank from the launcher's environment, or None."""
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isdigit() else None


def launcher(line: Line) -> None:
    """``--local-rank``, ``--distributed_launch`` and torchrun's environment, for the release at hand."""
    launched = bool(os.environ.get("RANK")) and local_rank() is not None
    if line.has("local_rank"):
        # Before 0.5.16 the environment alone does nothing: N processes would train a model each.
        several = launched and int(os.environ.get("WORLD_SIZE") or 1) > 1
        wished = "distributed_launch" in line.typed or line.tree.get("distributed_launch") is False
        if several and not wished:
            log.info("set distributed_launch and local_rank, because torchrun started this process")
            line.set("distributed_launch", True)
        if line.tree.get("distributed_launch") is True and not launched:
            log.warning(
                "distributed_launch in the yaml has no effect without a launcher (torchrun): this process trains alone"
            )
        if line.values.get("distributed_launch") and launched:
            line.values.setdefault("local_rank", local_rank())
        return
    # From 0.5.16 on the environment alone counts; old launchers set the rank there, and not the local one.
    text = str(line.user_values.get("local_rank", ""))
    if text and os.environ.get("RANK") and not os.environ.get("LOCAL_RANK"):
        os.environ["LOCAL_RANK"] = text
        log.info(f"set LOCAL_RANK={text} from --local_rank, because this release reads only the variable")
    wanted = line.user_values.get("distributed_launch", launched)
    if wanted != launched:
        log.warning(
            f"--distributed_launch={wanted} has no effect: this release uses DDP under torchrun, and only there"
        )
    line.drop("local_rank")
    line.drop("distributed_launch")


def normalise(line: Line) -> None:
    """``device``: of the GPUs, the one of this rank."""
    # What is typed is read before the release changes it.
    device = line.user_values.get("device", line.values.get("device") if "device" in line.of_yaml else None)
    if device is None:
        return
    rank = local_rank() if "local_rank" not in line.values else line.values["local_rank"]
    # From 1.1.0 on there is no default: what is typed is kept.
    now = of_rank(str(device), rank, line.arg_parser.get_default("device") is None)
    if now != line.values["device"]:
        line.set("device", now)


def of_rank(device: str, rank: Optional[int], keeps: bool) -> str:
    """Return the device of a process.

    Args:
        keeps: whether the release keeps the device as it is typed (1.1.0 on). There one process may choose its GPU, and
            a process that sees too few GPUs for its rank sees one of its own.
    """
    if rank is None or "cuda" not in device:
        return device
    now = f"cuda:{rank}"
    if keeps and now != device:
        if ":" in device and rank == 0 and os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE")) == "1":
            return device
        import torch

        if 0 < torch.cuda.device_count() <= rank:
            return device
        log.info(f"local rank {rank} uses {now} instead of {device}")
    return now
