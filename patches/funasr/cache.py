"""Releasing cached GPU memory on request, and resuming without a second copy on another rank's GPU."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Dict, MutableMapping, Tuple
from weakref import WeakKeyDictionary

import torch

from ddpfix import devices, log
from ddpfix.patching import checks
from ddpfix.patching.site import Site

from . import trainers

# From 1.0.26 to 1.0.28 ``reset_gpu_cache`` released above this many bytes, intended for a GPU of 80 GB.
_LIMIT = 70 * 2**30
_IGNORED = (
    "this release of FunASR ignores train_conf.disable_gpu_cache, which emptied the GPU cache after every forward in"
    " 1.0.11 to 1.0.17. Set DDPFIX_CACHE=1 to empty it after every step"
)


def release(site: Site, module: ModuleType, owner: Any) -> None:
    """``DDPFIX_CACHE=N`` releases after every N-th optimizer step; ``train_conf.reset_gpu_cache`` does what it says.

    ``reset_gpu_cache`` releases before each epoch (or data slice), and after a step that leaves more reserved than
    70 GiB or 7/8 of the GPU, whichever is less.
    """
    every = site.settings.number("cache")
    name = trainers.method(owner, "train_epoch")
    # Optimizer steps by trainer: an epoch or a data slice may be shorter than the interval.
    steps: MutableMapping[Any, int] = WeakKeyDictionary()
    # Read before anything is wrapped: these say what the release itself uses.
    names = checks.code_names(owner, name)

    def built(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if kwargs.get("disable_gpu_cache") and "disable_gpu_cache" not in names:
            log.warning(_IGNORED)

    def epoch(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        given = trainers.epoch_of(wrapped, trainer, args, kwargs)
        # Where the release itself looks at the reserved memory, it is left to do so.
        reset = bool(getattr(trainer, "reset_gpu_cache", False)) and "max_memory_reserved" not in names
        device = next(given.model.parameters()).device
        if (every is None and not reset) or not devices.is_accelerator(device):
            return wrapped(*args, **kwargs)
        limit = min(_LIMIT, 7 / 8 * (devices.total_memory(device) or float("inf")))
        if reset:
            devices.empty_cache(device)

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            number = steps[trainer] = steps.get(trainer, 0) + 1
            due = every is not None and number % every == 0
            if due or (reset and (devices.reserved_memory(device) or 0) > limit):
                devices.empty_cache(device)

        with given.optim.register_step_post_hook(stepped):
            return wrapped(*args, **kwargs)

    site.wrap(owner, "__init__", built)
    site.wrap(owner, name, epoch)


def resume(site: Site, module: ModuleType, owner: Any) -> None:
    """Before 1.0.20 every rank loads the checkpoint onto the GPU that saved it; now it comes by way of the CPU."""

    def resumed(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        with trainers.seen_by(module, "torch", load=functools.partial(torch.load, map_location="cpu")):
            return wrapped(*args, **kwargs)

    site.wrap(owner, trainers.method(owner, "resume_checkpoint"), resumed)
