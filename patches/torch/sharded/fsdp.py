"""Steps of fully sharded models (FSDP, ``fully_shard``): all ranks skip the same layers.

Their root is known only when it first runs, so ranks agree then. One wrapper of FSDP's forward does it; a model under
``fully_shard`` stays what it is, and has a pair of hooks on its root.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any, Callable, List, Optional, Tuple

from ddpfix.layerdrop import cover, training
from ddpfix.patching import tracebacks
from ddpfix.patching.site import Site

from ..agreement import root_step
from ..agreement import stage as agreement
from ..internals import process_groups, wrapper


def steps(site: Site, module: ModuleType, owner: Any) -> None:
    def find(model: Any) -> Optional[training.Replica]:
        if root_step.is_inner(model) or wrapper.is_inner(model):
            return None
        replica = _replica(site, model, lambda: process_groups.of_fsdp1(model), model.process_group)
        if replica is not None:
            # All micro-batches of an accumulation window skip the same layers: a unit that ran under no_sync and not in
            # the last micro-batch keeps a gradient that is never reduced, and FSDP raises an AssertionError.
            if replica.open:
                replica.iteration -= 1
            replica.open = not wrapper.reduces(model)
        return replica

    root_step.put(site, owner, find, lambda model, step: None)


def fully_shard(site: Site, module: ModuleType, owner: Any) -> None:
    site.wrap_hot(module, "fully_shard", functools.partial(_sharding, site))
    site.at_undo(training.TRAINED.forget)


def _replica(
    site: Site, root: Any, holders: Callable[[], Optional[List[int]]], group: Any
) -> Optional[training.Replica]:
    replica = training.replica_of(root)
    ranks = holders() if replica is None else None
    if ranks is not None:
        replica = root_step.agreed(site, root, root, process_groups.members_of(group, ranks))
    return replica


def _sharding(site: Site, original: Any) -> Callable[..., Any]:
    # The parameters are those of torch's own wrapper (``contract``).
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(module, *args, **kwargs)
        except BaseException as error:
            tracebacks.hide(error)
            raise
        mesh = inspect.signature(original).bind(module, *args, **kwargs).arguments.get("mesh")
        for part in module if isinstance(module, (list, tuple)) else [module]:
            # Where no layer is skipped, nothing is put on the module.
            if cover.active(part):
                _Steps(site, part, mesh).attach()
        return result

    return fully_shard


class _Steps:
    """Counts the steps of a module with a pair of hooks, because FSDP2 does not wrap it."""

    def __init__(self, site: Site, module: Any, mesh: Any) -> None:
        self.site, self.module, self.ranks = site, module, process_groups.of_fsdp2(module, mesh)
        self.group = mesh.get_group() if mesh is not None and mesh.ndim == 1 else None
        self.tokens: List[Optional[Tuple[training.Step, Any]]] = []

    def attach(self) -> None:
        # Nobody can save or copy such a module whole, in plain torch neither, so the hooks are in no file.
        self.site.at_undo(self.module.register_forward_pre_hook(self.begin, prepend=True).remove)
        self.site.at_undo(self.module.register_forward_hook(self.end, always_call=True).remove)

    def begin(self, module: Any, args: Any) -> None:
        inner = not self.site.active or root_step.is_inner(module)
        replica = None if inner else _replica(self.site, module, lambda: self.ranks, self.group)
        self.tokens.append(None if replica is None else training.enter(replica))

    def end(self, module: Any, args: Any, output: Any) -> None:
        token = self.tokens.pop() if self.tokens else None
        if token is not None:
            training.leave(token)
            if output is not None:
                agreement.watch(output, token[0])
