"""Ranks agree when a model is wrapped, and every training forward of it is one numbered step from then on."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import distributed

from ddpfix import agree, draws, engine, log, recall, sync, wrapping
from ddpfix.frames import skip_frames
from ddpfix.registry import Site

from . import shards


def ddp(site: Site, module: ModuleType, owner: Any) -> None:
    """Agreement at ``DistributedDataParallel.__init__``, steps in its ``forward``, a mark when the group comes up."""
    if module.__name__.endswith("distributed_c10d"):
        site.once(module, "init_process_group", _group_up)
        if distributed.is_available() and distributed.is_initialized():
            agree.announce()
        return
    _name_those_before(owner)
    site.once(owner, "__init__", _ddp_built)
    site.often(owner, "forward", _ddp_forward)
    skip_frames(vars(owner)["forward"])
    site.at_undo(sync.forget)


def _name_those_before(owner: Any) -> None:
    """A model that was wrapped before us has agreed on nothing: it is named, and stays as it is."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    for found in [found for found in gc.get_objects() if type(found) is owner]:
        log.warning(
            f"a {type(found.module).__name__} was wrapped by DistributedDataParallel before ddpfix was activated: it is"
            " not covered. Activate ddpfix first (import ddpfix.auto as the first line)."
        )


def hold(site: Site, module: ModuleType, owner: Any) -> bool:
    """Before torch 2.4 all micro-batches of an accumulation window skip the same layers.

    There, DDP with ``find_unused_parameters`` averages only what the last micro-batch used: a parameter that an earlier
    one used, under ``no_sync``, keeps the gradient of its own rank, and ranks drift apart without a word (pytorch issue
    69031, mended by pull request 124193). With one decision a window, what is unused at the end was never used in it.
    """
    _HOLDING.append(True)
    site.at_undo(_HOLDING.clear)
    return True


_HOLDING: List[bool] = []


def fsdp(site: Site, module: ModuleType, owner: Any) -> None:
    """The same for fully sharded models; their root is known only when it first runs, so ranks agree then."""
    if inspect.isclass(owner):
        site.often(owner, "forward", _fsdp_forward)
        skip_frames(vars(owner)["forward"])
    else:
        site.once(module, "fully_shard", _fully_sharded)
    site.at_undo(sync.forget)


def _group_up(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    agree.announce()
    return result


def _ddp_built(wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    arguments = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    mesh = arguments.get("device_mesh")
    group = arguments.get("process_group") if mesh is None else mesh.get_group(mesh_dim=0)
    seed = _agree(arguments["module"], shards.ranks_of(group))
    wrapped(*args, **kwargs)
    flagged = bool(instance.find_unused_parameters and not getattr(instance, "static_graph", False))
    if flagged:
        wrapping.forbid_reentrant(arguments["module"])
    if seed is not None:
        replica = sync.register(instance, arguments["module"], seed)
        replica.flagged = flagged


def _agree(model: Any, ranks: List[int]) -> Optional[int]:
    """Look at the model, compare with the other ranks, and return the shared seed (None: ranks cannot agree here)."""
    facts = dict(_facts())
    try:
        wrapping.look_at(model)
        facts["LayerDrop"] = "; ".join(f"{name or 'the model'} {rate:g}" for name, _, rate in draws.active(model))
    except Exception as error:
        # It has to be said before the other ranks, or they would wait for this one.
        facts["failure"] = repr(error)
        log.warning(f"the model could not be looked at ({error!r}); report this, and set DDPFIX=0 to go on without us")
    running = engine.current()
    limit = running.settings.seconds() if running is not None else 60.0
    seed = agree.meet(ranks, distributed.get_rank(), facts, _seed(), limit)
    _tell()
    return seed


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


def _ddp_forward(stock: Any) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        replica = sync.replica_of(self) if self.training and torch.is_grad_enabled() else None
        if replica is None:
            return stock(self, *inputs, **kwargs)
        if _HOLDING and replica.open:
            replica.iteration -= 1
        replica.open = not self.require_backward_grad_sync
        return _run(stock, replica, self, inputs, kwargs)

    return forward


def _run(stock: Any, replica: sync.Replica, wrapper: Any, inputs: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    token = sync.enter(replica)
    try:
        output = stock(wrapper, *inputs, **kwargs)
    finally:
        sync.leave(token)
    _watch(output, token[0])
    return output


def _watch(output: Any, step: sync.Step) -> None:
    """Note when the backward of this step has begun: its decisions are not needed any more once it has ended."""
    if not step.calls:
        return

    def reached(gradient: Any) -> None:
        step.reached = True

    for tensor in _tensors(output):
        # A leaf (a parameter, or an input) would keep the hook.
        if tensor.requires_grad and tensor.grad_fn is not None:
            tensor.register_hook(reached)


def _tensors(output: Any) -> List[Any]:
    from torch.nn.parallel.distributed import _find_tensors

    return list(_find_tensors(output))


def _fsdp_forward(stock: Any) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if _inner(self) or getattr(self, "_is_root", None) is False:
            return stock(self, *inputs, **kwargs)
        replica = _sharded(self, lambda: shards.of_fsdp1(self))
        if replica is None:
            return stock(self, *inputs, **kwargs)
        # A unit that ran under no_sync and not in the last micro-batch keeps a gradient that is never reduced, and FSDP
        # ends in an assertion: all micro-batches of a window skip the same layers.
        if replica.open:
            replica.iteration -= 1
        replica.open = not self._sync_gradients
        return _run(stock, replica, self, inputs, kwargs)

    return forward


def _inner(module: Any) -> bool:
    """Whether this call is not the beginning of a step: evaluation, a part of a step, or a recomputation."""
    if not module.training or not torch.is_grad_enabled():
        return True
    return sync.current() is not None or recall.in_backward()


def _sharded(root: Any, holders: Callable[[], Optional[List[int]]]) -> Optional[sync.Replica]:
    replica = sync.replica_of(root)
    ranks = holders() if replica is None else None
    if ranks is not None:
        seed = _agree(root, ranks)
        if draws.active(root):
            wrapping.forbid_reentrant(root)
        replica = None if seed is None else sync.register(root, root, seed)
    return replica


def _fully_sharded(wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    result = wrapped(*args, **kwargs)
    arguments = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    module = arguments["module"]
    mesh = arguments.get("mesh")
    for part in module if isinstance(module, (list, tuple)) else [module]:
        _Steps(part, mesh).attach()
    return result


class _Steps:
    """FSDP2 leaves the module what it is, so steps are counted by a pair of hooks on it."""

    def __init__(self, module: Any, mesh: Any) -> None:
        self.module, self.ranks = module, shards.of_fsdp2(module, mesh)
        self.tokens: List[Optional[Tuple[sync.Step, Any]]] = []

    def attach(self) -> None:
        self.module.register_forward_pre_hook(self.begin, prepend=True)
        self.module.register_forward_hook(self.end, always_call=True)

    def begin(self, module: Any, args: Any) -> None:
        inner = engine.current() is None or _inner(module)
        replica = None if inner else _sharded(module, lambda: self.ranks)
        self.tokens.append(None if replica is None else sync.enter(replica))

    def end(self, module: Any, args: Any, output: Any) -> None:
        token = self.tokens.pop() if self.tokens else None
        if token is not None:
            sync.leave(token)
            if output is not None:
                _watch(output, token[0])


# Models that are wrapped one after the other get seeds of their own.
_MODELS = itertools.count()
