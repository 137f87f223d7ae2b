"""Steps of fully sharded models (FSDP, ``fully_shard``): all ranks skip the same layers.

Their root is known only when it first runs, so ranks agree then. One wrapper of FSDP's forward does it; a model under
``fully_shard`` stays what it is, and has a pair of hooks on its root.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ddpfix import draws, engine, log, recall, sync, wrapping
from ddpfix.frames import skip_frames
from ddpfix.registry import Site

from . import agreement, sharding


class First:
    """The first training forward of a sharded model: what its stages find out."""

    def __init__(self, root: Any, ranks: List[int]) -> None:
        self.root, self.ranks = root, ranks
        self.failure: Optional[Exception] = None
        self.seed: Optional[int] = None


def _look(first: First) -> None:
    try:
        wrapping.look_at(first.root)
    except Exception as error:
        first.failure = error
        log.warning(f"the model could not be looked at ({error!r}); report this, and set DDPFIX=0 to go on without us")


def _agree(first: First) -> None:
    first.seed = agreement.agree_on(first.root, first.ranks, first.failure)


def _checkpoints(first: First) -> None:
    if draws.active(first.root):
        wrapping.forbid_reentrant(first.root)


ORDER: Tuple[Callable[[First], None], ...] = (
    _look,  # What looks at a model may change which layers it skips, which is what ranks compare.
    _agree,  # Nothing else may happen before all ranks are known to be there.
    _checkpoints,  # Asks whether it skips layers.
)


def steps(site: Site, module: ModuleType, owner: Any) -> bool:
    """Put on the forward of FSDP, or on ``fully_shard``."""
    if inspect.isclass(owner):
        site.often(owner, "forward", _forward)
        skip_frames(vars(owner)["forward"])
    else:
        site.once(module, "fully_shard", _fully_sharded)
    site.at_undo(sync.forget)
    return True


def _forward(stock: Any) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if _inner(self) or getattr(self, "_is_root", None) is False:
            return stock(self, *inputs, **kwargs)
        replica = _replica(self, lambda: sharding.of_fsdp1(self))
        if replica is None:
            return stock(self, *inputs, **kwargs)
        # A unit that ran under no_sync and not in the last micro-batch keeps a gradient that is never reduced, and FSDP
        # ends in an assertion: all micro-batches of a window skip the same layers.
        if replica.open:
            replica.iteration -= 1
        replica.open = not self._sync_gradients
        token = sync.enter(replica)
        try:
            output = stock(self, *inputs, **kwargs)
        finally:
            sync.leave(token)
        agreement.watch(output, token[0])
        return output

    return forward


def _inner(module: Any) -> bool:
    """Whether this call is not the beginning of a step: evaluation, a part of a step, or a recomputation."""
    if not module.training or not torch.is_grad_enabled():
        return True
    return sync.current() is not None or recall.in_backward()


def _replica(root: Any, holders: Callable[[], Optional[List[int]]]) -> Optional[sync.Replica]:
    replica = sync.replica_of(root)
    ranks = holders() if replica is None else None
    if ranks is not None:
        first = First(root, ranks)
        for stage in ORDER:
            stage(first)
        replica = None if first.seed is None else sync.register(root, root, first.seed)
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
        self.module, self.ranks = module, sharding.of_fsdp2(module, mesh)
        self.tokens: List[Optional[Tuple[sync.Step, Any]]] = []

    def attach(self) -> None:
        self.module.register_forward_pre_hook(self.begin, prepend=True)
        self.module.register_forward_hook(self.end, always_call=True)

    def begin(self, module: Any, args: Any) -> None:
        inner = engine.current() is None or _inner(module)
        replica = None if inner else _replica(module, lambda: self.ranks)
        self.tokens.append(None if replica is None else sync.enter(replica))

    def end(self, module: Any, args: Any, output: Any) -> None:
        token = self.tokens.pop() if self.tokens else None
        if token is not None:
            sync.leave(token)
            if output is not None:
                agreement.watch(output, token[0])
