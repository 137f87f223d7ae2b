"""``wenet_join`` where ``ProcessGroup.options`` was removed (3.0.0 to main on torch 2.6 and later).

deepspeed and FSDP read their time limit there in the second batch: "object has no attribute 'options'". It is needed
where ranks do not agree ahead (:mod:`.uneven`), that is with DDPFIX_UNEVEN=off.
"""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any, Callable

import torch
from torch import distributed

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.ranks.groups.internals import backend_of, limit_of

from . import uneven


def limit(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``wenet_join``; a group that has options is left to it."""
    site.wrap_hot(module, "wenet_join", _joined)


def _joined(original: Callable[..., Any]) -> Callable[..., Any]:
    def wenet_join(group_join: Any, info_dict: Any) -> Any:
        first = info_dict["batch_idx"] == 0 or info_dict.get("train_engine", "torch_ddp") == "torch_ddp"
        if first or uneven.RUNNING.get() or hasattr(group_join, "options"):
            return original(group_join, info_dict)
        timeout = timedelta(seconds=limit_of(backend_of(group_join, torch.device("cpu"))))
        try:
            distributed.monitored_barrier(group=group_join, timeout=timeout)
        except RuntimeError as error:
            log.info(
                f"all ranks stop here: one has no more batches, or took longer than {timeout} (--timeout). {error}"
            )
            return True
        return False

    return wenet_join
