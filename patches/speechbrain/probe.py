"""Under ``python -m ddpfix probe`` on a machine without a GPU: gloo and the CPU, in the place of NCCL and the GPU.

A release that finds RANK in the environment asks for a GPU before it makes the process group, unless the backend is
gloo; before 0.5.14 it asks for one whatever the backend is, and so trains without a group here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix import log
from ddpfix.patching.site import Site

from ..common.lines import release
from .line import Line, after

_GLOO_WITHOUT_GPU = (0, 5, 14)


def on_cpu(site: Site, module: ModuleType, owner: Any) -> None:
    after(site, _settle)


def _settle(line: Line) -> None:
    import torch

    if torch.cuda.is_available():
        return
    changed = []
    if line.values.get("distributed_backend", "nccl") == "nccl":
        line.set("distributed_backend", "gloo")
        changed.append("gloo")
    device = line.values.get("device")
    if device is None or str(device).startswith("cuda"):
        line.set("device", "cpu")
        changed.append("the CPU")
    if release("speechbrain") < _GLOO_WITHOUT_GPU and line.values.get("distributed_launch"):
        line.set("distributed_launch", False)
        changed.append("one process, because this release cannot use DDP without a GPU")
    if changed:
        log.info(f"no GPU found, so the probe uses {' and '.join(changed)}")
