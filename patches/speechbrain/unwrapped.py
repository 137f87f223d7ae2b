"""Modules that DDP leaves out are the same on all ranks when training begins (speechbrain pull request 2814).

A Brain wraps the modules that have trainable parameters, and DDP makes these equal. A frozen module that was made at
random (a quantizer, a projection) is whatever the seed of its rank made it. SpeechBrain 1.0.2 adds the rank to the
seed: there every rank trains towards a target of its own. All ranks have just wrapped a module together, so they are
here, and they compare digests through the process group's store.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from types import ModuleType
from typing import Any, Dict, List, Tuple

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpfix import log
from ddpfix.exchange import roll_call
from ddpfix.groups.internals import name_of
from ddpfix.patching.site import Site
from ddpfix.user_code import module_of

from . import brains

# Integers of an element's size: sums of them are exact in any order.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_STATISTICS = "speechbrain.processing.features"


def compare(site: Site, module: ModuleType, owner: Any) -> None:
    """Name modules that differ by rank."""
    site.wrap(owner, "_wrap_distributed", functools.partial(_wrapped, weakref.WeakSet(), False))


def compare_early(site: Site, module: ModuleType, owner: Any) -> None:
    """Name modules that differ by rank, and those that will: statistics that each rank has of its own batches."""
    compare(site, module, owner)
    site.wrap(owner, "_wrap_distributed", _statistics)


def share(site: Site, module: ModuleType, owner: Any) -> None:
    """Give all ranks the modules of the first one where they differ, because the seed has the rank in it."""
    site.wrap(owner, "_wrap_distributed", functools.partial(_wrapped, weakref.WeakSet(), True))
    site.wrap(owner, "_wrap_distributed", _statistics)


def _statistics(wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    for name, module in brain.modules.named_modules() if brains.is_distributed(brain) else ():
        kind = type(module)
        ours = any(module_of(level) == _STATISTICS for level in kind.__mro__)
        if ours and kind.__name__ == "InputNormalization" and getattr(module, "norm_type", "") in ("global", "speaker"):
            log.once(
                f"{name} ({kind.__name__}, {module.norm_type}): each rank keeps statistics of its own batches, and"
                " checkpoints save those of rank 0. SpeechBrain 1.0.3 averages global statistics over ranks"
            )
    return result


def _wrapped(seen: Any, shares: bool, wrapped: Any, brain: Any, args: Any, kwargs: Any) -> Any:
    """Compare what DDP leaves out, once for each module: what it has learned since is its own."""
    result = wrapped(*args, **kwargs)
    if not brains.is_distributed(brain):
        return result
    bare = {name: part for name, part in brain.modules.items() if not isinstance(part, DistributedDataParallel)}
    if len(bare) == len(brain.modules):
        # Nothing is under DDP, so nothing says that the other ranks are here.
        return result
    states = {name: _state(part) for name, part in bare.items() if part not in seen}
    seen.update(bare.values())
    ranks = list(range(distributed.get_world_size()))
    calls = roll_call.RollCall(f"unwrapped/{roll_call.name_of_next(name_of(None, ranks), 'brain')}", ranks)
    shapes = [
        (name, [(each, tuple(value.shape), str(value.dtype)) for each, value in state])
        for name, state in states.items()
    ]
    if not calls.same(_short(shapes)):
        log.warning("ranks have different modules without trainable parameters, or the same ones with different shapes")
        return result
    for name, state in states.items():
        if not state or calls.same(_digest(state)):
            continue
        kind = type(bare[name]).__name__
        if not shares:
            log.warning(
                f"{name} ({kind}) differs between ranks. It has no trainable parameter, so DDP does not synchronise it."
                " Seed all ranks alike before you create it, or load it from a file"
            )
            continue
        for _, value in state:
            _share(value, brain.device)
        log.info(
            f"copied {name} ({kind}) from rank 0 to all ranks: SpeechBrain 1.0.2 adds the rank to the seed, and DDP"
            " does not synchronise a module without trainable parameters (DDPFIX_SPEECHBRAIN_UNWRAPPED=0 skips this)"
        )
    return result


def _state(module: Any) -> List[Tuple[str, Any]]:
    """Frozen parameters and buffers, of which all are in memory."""
    named: Dict[str, Any] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    lazy = torch.nn.parameter.UninitializedTensorMixin
    return [
        (name, value.detach())
        for name, value in named.items()
        if not isinstance(value, lazy) and value.layout is torch.strided and value.device.type != "meta"
    ]


def _digest(state: List[Tuple[str, Any]]) -> str:
    sums = [_real(value).view(_BITS[_real(value).element_size()]).sum(dtype=torch.int64) for _, value in state]
    return _short([int(each) for each in sums])


def _real(value: Any) -> Any:
    return torch.view_as_real(value) if value.is_complex() else value


def _short(value: Any) -> str:
    return hashlib.sha1(repr(value).encode()).hexdigest()


def _share(value: Any, device: Any) -> None:
    """Give a tensor the value that it has on the first rank, bit for bit."""
    held = _real(value).to(device, copy=True).contiguous()
    distributed.broadcast(held.reshape(-1).view(torch.uint8), 0)
    with torch.no_grad():
        _real(value).copy_(held)
