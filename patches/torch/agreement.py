"""Ranks agree when a model is wrapped, and every training forward of it is one numbered step from then on."""

from __future__ import annotations

import itertools
import os
from types import ModuleType
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import distributed

from ddpfix import agree, draws, engine, log, sync, wrapping
from ddpfix.registry import Site

from . import accumulation, ddp, sharding


def ranks(site: Site, module: ModuleType, owner: Any) -> bool:
    """The stage of DDP, and a mark in the store when the process group comes up."""
    if module.__name__.endswith("distributed_c10d"):
        site.once(module, "init_process_group", _group_up)
        if distributed.is_available() and distributed.is_initialized():
            agree.announce()
        return True
    site.at_undo(sync.forget)
    return ddp.put(site, owner, Agreement())


def _group_up(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    # A process that lived before knows seeds of groups that the others have never seen.
    _AGREED.clear()
    agree.announce()
    return result


class Agreement(ddp.Stage):
    """Compares the ranks of a model's group before DDP's first collective, and counts its steps."""

    place = "agreement"

    def arguments(self, call: ddp.Call) -> None:
        mesh = call.arguments.get("device_mesh")
        group = call.arguments.get("process_group") if mesh is None else mesh.get_group(mesh_dim=0)
        call.facts["seed"] = agree_on(call.module, sharding.ranks_of(group), call.facts["failure"])

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        wrapper = model.wrapper
        seed = call.facts["seed"] if call is not None else _seed_of_a_copy(wrapper)
        flagged = bool(wrapper.find_unused_parameters and not getattr(wrapper, "static_graph", False))
        if flagged:
            wrapping.forbid_reentrant(wrapper.module)
        if seed is not None:
            replica = sync.register(wrapper, wrapper.module, seed)
            replica.flagged = flagged
            if flagged or accumulation.may_skip(wrapper.module):
                steps = Steps(model, replica)
                model.attach(self.place, steps.begin, steps.end, steps.failed)


class Steps:
    """The steps of one model: each training forward is one, also under ``no_sync``."""

    def __init__(self, model: ddp.Wrapped, replica: sync.Replica) -> None:
        self.model, self.replica = model, replica
        self.tokens: List[Optional[Tuple[sync.Step, Any]]] = []

    def begin(self) -> None:
        wrapper, replica = self.model.wrapper, self.replica
        if not wrapper.training:
            self.tokens.append(None)
            return
        # The micro-batches of a window skip the same layers where that is needed (see accumulation.py).
        if self.model.holds and replica.open:
            replica.iteration -= 1
        replica.open = not wrapper.require_backward_grad_sync
        self.tokens.append(sync.enter(replica))

    def end(self, output: Any) -> None:
        token = self.tokens.pop()
        if token is not None:
            sync.leave(token)
            watch(output, token[0])

    def failed(self, error: BaseException) -> None:
        token = self.tokens.pop() if self.tokens else None
        if token is not None:
            sync.leave(token)


def watch(output: Any, step: sync.Step) -> None:
    """Note when the backward of this step has begun: its decisions are not needed any more once it has ended."""
    if not step.calls:
        return

    def reached(gradient: Any) -> None:
        step.reached = True

    for tensor in ddp.tensors(output):
        # A leaf (a parameter, or an input) would keep the hook.
        if tensor.requires_grad and tensor.grad_fn is not None:
            tensor.register_hook(reached)


def agree_on(model: Any, members: List[int], failure: Optional[Exception] = None) -> Optional[int]:
    """Compare with the other ranks, and return the shared seed (None: ranks cannot agree here).

    Args:
        model: the module that is about to be wrapped, after everything has looked at it.
        members: the global ranks of its group.
        failure: what looking at it raised on this rank.
    """
    facts = dict(_facts())
    facts["LayerDrop"] = "; ".join(f"{name or 'the model'} {rate:g}" for name, _, rate in draws.active(model))
    if failure is not None:
        facts["failure"] = repr(failure)
    running = engine.current()
    limit = running.settings.seconds() if running is not None else 60.0
    seed = agree.meet(members, distributed.get_rank(), facts, _seed(), limit)
    _tell()
    if seed is not None:
        _AGREED[tuple(members)] = seed
    return seed


# The seed on which each group has agreed last.
_AGREED: Dict[Tuple[int, ...], int] = {}


def _seed_of_a_copy(wrapper: Any) -> Optional[int]:
    """A copy may be trained on some ranks only, so nobody is waited for: all know the seed of its original."""
    seed = _AGREED.get(tuple(sharding.ranks_of(wrapper.process_group)))
    return None if seed is None else sync.fold(seed, sync.text_key("copy"))


def _facts() -> Dict[str, str]:
    running = engine.current()
    return running.facts() if running is not None else {}


def _seed() -> int:
    """The user's seed makes the decisions reproducible; a restarted job continues with others than it began with."""
    running = engine.current()
    chosen = running.settings.seed() if running is not None else None
    base = torch.initial_seed() if chosen is None else chosen
    return sync.fold(base, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), next(_MODELS))


_told = False


def _tell() -> None:
    """The one line of a process group, when the first model is wrapped."""
    global _told
    if not _told:
        _told = True
        running = engine.current()
        for lost in running.verify() if running is not None else ():
            log.warning(lost)
        log.info(engine.report().summary())


# Models that are wrapped one after the other get seeds of their own.
_MODELS = itertools.count()
