"""Ranks with different numbers of batches train an epoch together (WeNet 1.0 to main; issues 842 and 2266).

WeNet 1.x does nothing about it. From 2.0 on a rank that is done waits in ``model.join``, which goes wrong where the
others come to anything else than a training step (validation in step mode) and leaves ranks with different learning
rates; deepspeed and FSDP have a barrier with a time limit instead, which cannot tell slow from done.

Here each rank fetches one batch ahead, and ranks agree on batch n+1 while step n runs (:mod:`.batches`). All ranks
then take the same number of steps, so that nothing else in an epoch is uneven:

join: ranks that are done go on with zero gradients (:mod:`.batches`) until the last one is. Nothing is dropped,
    and the mean over ranks is the one of ``model.join``. DDP only.
stop: all ranks stop when the first one is done, and the rest is left out, and counted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from contextvars import ContextVar
from datetime import timedelta
from types import ModuleType
from typing import Any, Callable, ContextManager, Dict, Optional, Tuple

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpfix import log
from ddpfix.groups.internals import backend_of, limit_of
from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError, Site
from ddpfix.uneven import async_sum
from ddpfix.uneven.loader import EvenLoader, Held, policy

from . import batches

# In every release the training loader is the fourth argument of Executor.train.
_LOADER = 3
_LOADERS = ("data_loader", "train_data_loader")
# Far beyond what torch itself waits for in a step: not to be the first to give up.
_TIMEOUT = timedelta(hours=24)
_SHARDED = ("deepspeed", "torch_fsdp")

# Whether an epoch runs here under an agreement of ours.
RUNNING: ContextVar[bool] = ContextVar("ddpfix_wenet_running", default=False)


def join(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``wenet_join`` (3.0.0 and later)."""
    site.wrap_hot(module, "wenet_join", _joined)


def even(site: Site, module: ModuleType, owner: Any) -> None:
    names = list(inspect.signature(owner.train).parameters)[1:]
    if len(names) <= _LOADER or names[0] != "model" or names[_LOADER] not in _LOADERS:
        raise PatchError(f"Executor.train takes {', '.join(names)}: its loader is not where it was in any release")
    loader = names[_LOADER]
    stop, held = policy(site, "WeNet") == "stop", site.keep(Held)

    def train(wrapped: Any, executor: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        kind = engine(given)
        group = async_sum.cpu_group(_TIMEOUT) if kind else None
        if kind and group is None:
            log.warning(
                "uneven batches are left to WeNet: ranks compare their numbers through gloo, which is unavailable here"
            )
        if group is None:
            return wrapped(*args, **kwargs)
        model = given["model"]
        filling = None if stop or kind != "torch_ddp" else batches.Filler(model)
        if kind != "torch_ddp" and not stop and site.settings["uneven"] != "auto":
            log.info(f"{kind} does not support uneven={site.settings['uneven']}: ddpfix uses uneven=stop")
        held.hold(given[loader])
        given[loader] = EvenLoader(given[loader], functools.partial(batches.epoch, filling, group))
        ended = contextlib.nullcontext() if filling is None else contextlib.closing(filling)
        with temporary.assigned(RUNNING, True), ended, _without_join(model):
            return wrapped(**given)

    site.wrap(owner, "train", train)


def engine(given: Dict[str, Any]) -> Optional[str]:
    """Return the engine that trains on several ranks (torch_ddp, torch_fsdp, deepspeed), or None."""
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return None
    if isinstance(given["model"], DistributedDataParallel):
        return "torch_ddp"
    engine_name = (given.get("configs") or {}).get("train_engine")
    return engine_name if engine_name in _SHARDED else None


def _joined(original: Any) -> Any:
    def wenet_join(group_join: Any, info_dict: Any) -> Any:
        # Every rank that gets here has a batch, and so have the others.
        return False if RUNNING.get() else original(group_join, info_dict)

    return wenet_join


def _without_join(model: Any) -> ContextManager[None]:
    """``model.join`` does nothing: no rank is done before the others, and its collectives in each step are saved."""
    if not isinstance(model, DistributedDataParallel) or "join" in vars(model):
        return contextlib.nullcontext()
    return temporary.replaced(model, "join", contextlib.nullcontext)


def limit(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``wenet_join`` where ``ProcessGroup.options`` was removed (3.0.0 to main on torch 2.6 and later).

    deepspeed and FSDP read their time limit there in the second batch: "object has no attribute 'options'". It is
    needed where ranks do not agree ahead, that is with DDPFIX_UNEVEN=off. A group that has options is left to it.
    """
    site.wrap_hot(module, "wenet_join", _limited)


def _limited(original: Callable[..., Any]) -> Callable[..., Any]:
    def wenet_join(group_join: Any, info_dict: Any) -> Any:
        first = info_dict["batch_idx"] == 0 or info_dict.get("train_engine", "torch_ddp") == "torch_ddp"
        if first or RUNNING.get() or hasattr(group_join, "options"):
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
