"""Steps of fully sharded models (FSDP, ``fully_shard``): all ranks skip the same layers.

Their root is known only when it first runs, so ranks agree then. One wrapper of FSDP's forward does it; a model under
``fully_shard`` stays what it is, and has a pair of hooks on its root.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpfix.layerdrop import cover, training
from ddpfix.patching import tracebacks
from ddpfix.patching.site import Site

from ..agreement import root_step
from ..agreement import stage as agreement
from ..internals import process_groups, wrapper


def steps(site: Site, module: ModuleType, owner: Any) -> None:
    root_step.put(site, owner, functools.partial(_forward, site))


def fully_shard(site: Site, module: ModuleType, owner: Any) -> None:
    site.wrap(module, "fully_shard", functools.partial(_fully_sharded, site))
    site.at_undo(training.TRAINED.forget)


def _forward(site: Site, original: Any) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if root_step.is_inner(self) or wrapper.is_inner(self):
            return original(self, *inputs, **kwargs)
        replica = _replica(site, self, lambda: process_groups.of_fsdp1(self), self.process_group)
        if replica is None:
            return original(self, *inputs, **kwargs)
        # All micro-batches of an accumulation window skip the same layers: a unit that ran under no_sync and not in the
        # last micro-batch keeps a gradient that is never reduced, and FSDP raises an AssertionError.
        if replica.open:
            replica.iteration -= 1
        replica.open = not wrapper.reduces(self)
        token = training.enter(replica)
        try:
            output = original(self, *inputs, **kwargs)
        except BaseException as error:
            tracebacks.hide(error)
            raise
        finally:
            training.leave(token)
        agreement.watch(output, token[0])
        return output

    return forward


def _replica(
    site: Site, root: Any, holders: Callable[[], Optional[List[int]]], group: Any
) -> Optional[training.Replica]:
    replica = training.replica_of(root)
    ranks = holders() if replica is None else None
    if ranks is not None:
        replica = root_step.agreed(site, root, root, process_groups.members_of(group, ranks))
    return replica


def _fully_sharded(site: Site, wrapped: Any, instance: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    result = wrapped(*args, **kwargs)
    arguments = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    module = arguments["module"]
    mesh = arguments.get("mesh")
    for part in module if isinstance(module, (list, tuple)) else [module]:
        # Where no layer is skipped, nothing is put on the module.
        if cover.active(part):
            _Steps(site, part, mesh).attach()
    return result


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
