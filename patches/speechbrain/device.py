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
    if line.has("local_rank"):
        _by_options(line)
        return
    if "local_rank" in line.user_values:
        _by_environment(line, str(line.user_values["local_rank"]))
    if "distributed_launch" in line.user_values:
        _tell(bool(line.user_values["distributed_launch"]))
        line.drop("distributed_launch")


def _by_environment(line: Line, text: str) -> None:
    """From 0.5.16 on the environment alone counts; old launchers set the rank there, and not the local one."""
    if not text.isdigit():
        line.fail(f"--local_rank={text}: use a whole number")
    if os.environ.get("RANK") and not os.environ.get("LOCAL_RANK"):
        os.environ["LOCAL_RANK"] = text
        log.info(f"set LOCAL_RANK={text} from --local_rank, because this release reads only the variable")
    elif os.environ.get("LOCAL_RANK", text) != text:
        log.info(f"--local_rank={text} is ignored: this release reads LOCAL_RANK={os.environ['LOCAL_RANK']}")
    line.drop("local_rank")


def _tell(wanted: bool) -> None:
    launched = bool(os.environ.get("RANK") and os.environ.get("LOCAL_RANK"))
    if wanted == launched:
        log.info("--distributed_launch is not needed: this release detects the launcher")
    elif wanted:
        log.warning(
            "--distributed_launch has no effect: this release uses DDP only under torchrun. Start it with torchrun"
        )
    else:
        log.warning("--distributed_launch=False has no effect: this release always uses DDP under torchrun")


def _by_options(line: Line) -> None:
    """Before 0.5.16 the environment alone does nothing: N processes would train a model each."""
    launched = bool(os.environ.get("RANK")) and local_rank() is not None
    if not launched and "distributed_launch" in line.of_yaml and line.values["distributed_launch"]:
        log.warning(
            "distributed_launch in the yaml has no effect without a launcher (torchrun): this process trains alone"
        )
        line.set("distributed_launch", False)
    several = launched and int(os.environ.get("WORLD_SIZE") or 1) > 1
    if several and "distributed_launch" not in line.typed | line.of_yaml:
        log.info("set distributed_launch and local_rank, because torchrun started this process")
        line.set("distributed_launch", True)
    if line.values.get("distributed_launch") and launched:
        line.values.setdefault("local_rank", local_rank())


def normalise(line: Line) -> None:
    """``device``: of the GPUs, the one of this rank."""
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
        if 0 < _gpus() <= rank:
            return device
        log.info(f"local rank {rank} uses {now} instead of {device}")
    return now


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())
