"""How often the host waits for the card in a step: seen by the profiler, and by torch's own warnings.

In a group of two the replicas are compared after the eighth step (``DDPFIX_DIVERGENCE``): that step and the next, in
which the comparison ends, are counted by themselves.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Iterable, List

import torch

from tests.gpu import card, training, world

_WINDOW = "ddpfix: the steps that are looked at"
# Calls of CUDA in which the host waits, as the profiler names them.
WAITS = (
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpy2D"),
    *("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cudaStreamSynchronize_ptsz"),
)
# A copy into memory that is not pinned is waited for, whatever its name says.
_COPY = "Memcpy DtoH"
ITEM = "aten::_local_scalar_dense"
GLOO = "gloo:"


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    steps = cell["options"]["steps"]
    with training.active(cell["mode"]) as mode:
        made = training.Run(cell["model"], cell["options"]["rate"], mode)
        # Buckets are made anew after the first step, and libraries load what they need in the first ones.
        made.steps(6)
        # The profiler, too, does things for the first time.
        profiled(made.step)
        look = profiled(lambda: made.steps(2))
        made.step()
        counts = profiled(lambda: made.steps(steps))
        warned = _warned(lambda: made.steps(steps)) if card.here() else 0
        flag = bool(made.model.find_unused_parameters)
    usual = {name: n / steps for name, n in counts.items()}
    return {"counts": usual, "look": look, "warned": warned / steps, "flag": flag, "cuda": card.here()}


def profiled(act: Callable[[], Any]) -> Dict[str, int]:
    """The waits within ``act``; not those of the profiler itself, which come after it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if card.here():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    world.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        with torch.profiler.record_function(_WINDOW):
            act()
        world.synchronize()
    return counted(profile.events())


def counted(events: Iterable[Any]) -> Dict[str, int]:
    """Events that begin within the window, by name; ``copies`` are the copies to memory that is not pinned."""
    seen: List[Any] = list(events)
    on_host = torch.autograd.DeviceType.CPU
    window = next(event.time_range for event in seen if event.name == _WINDOW and event.device_type == on_host)
    found = {"copies": 0, "waits": 0, "items": 0, "launches": 0, "gloo": 0}
    for event in seen:
        # On the card a copy may begin after the host has left the window; nothing else copies to the host.
        if event.name.startswith(_COPY) and "Pageable" in event.name:
            found["copies"] += 1
        if not window.start <= event.time_range.start <= window.end:
            continue
        if event.name in WAITS:
            found["waits"] += 1
            found[event.name] = found.get(event.name, 0) + 1
        found["items"] += event.name == ITEM
        # Each of gloo's collectives waits for the card in a thread of its own, and buckets may be cut otherwise.
        found["gloo"] += event.name.startswith(GLOO)
        # Without any, the profiler may not see CUDA here, and its zeros mean nothing.
        found["launches"] += "LaunchKernel" in event.name
    return found


def _warned(act: Callable[[], None]) -> int:
    """How many warnings of ``set_sync_debug_mode`` come; it does not see what torch.distributed does."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            act()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in seen)
