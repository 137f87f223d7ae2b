"""Releasing cached GPU memory on request, and resuming without a second copy on another rank's GPU."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Dict, MutableMapping, Tuple
from weakref import WeakKeyDictionary

import torch

from ddpfix import devices
from ddpfix.patching.site import Site

from . import trainers


def release(site: Site, module: ModuleType, owner: Any) -> None:
    """``DDPFIX_CACHE=N`` releases after every N-th optimizer step."""
    every = site.settings.number("cache")
    # Optimizer steps by trainer: an epoch or a data slice may be shorter than the interval.
    steps: MutableMapping[Any, int] = WeakKeyDictionary()

    def epoch(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        given = trainers.epoch_of(wrapped, trainer, args, kwargs)
        device = next(given.model.parameters()).device
        if every is None or not devices.is_accelerator(device):
            return wrapped(*args, **kwargs)

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            number = steps[trainer] = steps.get(trainer, 0) + 1
            if number % every == 0:
                devices.empty_cache(device)

        with given.optim.register_step_post_hook(stepped):
            return wrapped(*args, **kwargs)

    site.wrap(owner, trainers.method(owner, "train_epoch"), epoch)


def resume(site: Site, module: ModuleType, owner: Any) -> None:
    """Before 1.0.20 every rank loads the checkpoint onto the GPU that saved it; now it comes by way of the CPU."""

    def resumed(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        with trainers.seen_by(module, "torch", load=functools.partial(torch.load, map_location="cpu")):
            return wrapped(*args, **kwargs)

    site.wrap(owner, trainers.method(owner, "resume_checkpoint"), resumed)
