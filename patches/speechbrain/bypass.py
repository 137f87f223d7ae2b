"""Recipes that call a module as ``self.hparams.X``, the bare one, where ``self.modules.X`` is under DDP (issue 930).

Nothing says so: the loss goes down, and the replicas were never the same model. Recipes up to 1.1.0 do it (LM, G2P,
FastSpeech2, AISHELL-1's wav2vec, SLURP, timers-and-such, fluent-speech-commands). Their calls go through the wrapper.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpfix.patching.site import Site

from ..common import bypass
from . import brains


def route(site: Site, module: ModuleType, owner: Any) -> None:
    site.wrap(owner, "_wrap_distributed", functools.partial(_wrapped, site))


def _wrapped(site: Site, wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if brains.is_distributed(brain):
        for name, wrapper in getattr(brain, "modules", {}).items():
            if isinstance(wrapper, DistributedDataParallel):
                bypass.route(site, wrapper, list(range(distributed.get_world_size())), functools.partial(_told, name))
    return result


def _told(name: str, where: str) -> str:
    return (
        f"{where} calls {name} without DDP, so its gradients would not be averaged. ddpfix sends the call through DDP"
        f" (DDPFIX_BYPASS=off does not). Write self.modules.{name} instead of self.hparams.{name}"
    )
