"""What a rank is among others: its device, its process groups, and acts that all ranks do together."""

from __future__ import annotations

import datetime
import gc
import os
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import distributed

# A collective that one rank never joins ends in this time; the cell has an error then.
TIMEOUT = datetime.timedelta(seconds=30)
_CONTROL: List[Any] = []
_DEVICE: List[torch.device] = [torch.device("cpu")]


class ApartError(RuntimeError):
    """Some ranks failed and others did not: their collectives do not fit together any more."""


def start(backend: str, cuda: bool) -> None:
    """Join the default group, and two by way of the CPU beside it, which neither DDP nor ddpfix uses.

    The second one is for how acts have ended: a rank that has failed must not meet one that is still in its act.
    """
    if cuda:
        # The only card with gloo; one for each rank with NCCL, which refuses to share one.
        _DEVICE[0] = torch.device("cuda", int(os.environ["RANK"]) if backend == "nccl" else 0)
        torch.cuda.set_device(_DEVICE[0])
    distributed.init_process_group(backend, timeout=TIMEOUT)
    _CONTROL.extend(distributed.new_group(backend="gloo", timeout=times * TIMEOUT) for times in (1, 4))


def device() -> torch.device:
    """Where this rank trains."""
    return _DEVICE[0]


def rank() -> int:
    return int(distributed.get_rank())


def gathered(value: Any, group: int = 0) -> List[Any]:
    """A picklable value of each rank."""
    found: List[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value, group=_CONTROL[group])
    return found


def agreed(value: float) -> float:
    """Rank 0's number."""
    return float(gathered(value)[0])


def mean(tensor: torch.Tensor) -> torch.Tensor:
    """The mean over ranks, computed on the CPU, in the tensor's precision."""
    summed = tensor.detach().cpu().clone()
    distributed.all_reduce(summed, group=_CONTROL[0])
    return (summed / distributed.get_world_size()).to(tensor.device)


def barrier() -> None:
    synchronize()
    gathered(None)


def synchronize() -> None:
    if device().type == "cuda":
        torch.cuda.synchronize()


def together(
    act: Callable[[], Dict[str, Any]], note: Callable[..., None] = lambda error: None
) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """What an act found, or why it failed on all ranks in the same way; else raises :class:`ApartError`.

    ``note`` is told this rank's error at once, because the others may never come to hear of it.
    """
    found, error = None, None
    try:
        found = act()
        synchronize()
    except Exception as problem:
        traceback.print_exc()
        error = _said(problem)
        note(error=error)
    release()
    errors = gathered(error, 1)
    if len(set(errors)) > 1:
        raise ApartError(next(each for each in errors if each))
    return found, error


def _said(problem: BaseException) -> str:
    """The error's last line, and the innermost place in our own code or in this folder."""
    words = [line for line in str(problem).splitlines() if line.strip()]
    frames = [each for each in traceback.extract_tb(problem.__traceback__) if "site-packages" not in each.filename]
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(problem).__name__}: {words[0][:200] if words else ''}{where}"


def release() -> None:
    """Give back what a cell has held, so that the next one finds an empty card."""
    gc.collect()
    if device().type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
