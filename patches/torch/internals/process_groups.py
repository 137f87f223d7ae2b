"""Process groups, their members, and which ranks hold parts of one sharded model: all of them skip the same layers."""

from __future__ import annotations

from typing import Any, List, Optional

from torch import distributed

from ddpfix.exchange.rendezvous import Members
from ddpfix.groups.internals import collectives_of as collectives_of
from ddpfix.groups.internals import is_torchs as is_torchs
from ddpfix.groups.internals import name_of


def ranks_of(group: Any) -> List[int]:
    """Return the global ranks of a process group of torch's, in its order; None is the default group."""
    return list(distributed.get_process_group_ranks(default() if group is None else group))


def members_of(group: Any, ranks: Optional[List[int]] = None) -> Members:
    """Return the members of a process group (None: the default one), or those of its ranks that train one model."""
    whole = ranks_of(group)
    found = whole if ranks is None else ranks
    # Of a hybrid's ranks each knows another group as its own: what all of them know is the default one.
    return Members(name_of(group if found == whole else None, found), found, own_rank())


def default() -> Any:
    """Return the default process group."""
    return distributed.distributed_c10d._get_default_group()


def own_rank() -> int:
    """Return the global rank of this process."""
    return int(distributed.get_rank())


def of_fsdp1(wrapper: Any) -> Optional[List[int]]:
    """Return the ranks of a FullyShardedDataParallel module; None where they cannot be known.

    With a hybrid strategy there are several shard groups, which reduce layer by layer among each other, too.
    """
    if getattr(wrapper, "_fsdp_extension", None) is not None:
        # Tensor parallel layers in it: ranks that are not in its groups run them together.
        return None
    if not is_torchs(wrapper.process_group):
        return None
    shards = ranks_of(wrapper.process_group)
    across = getattr(wrapper, "_inter_node_pg", None)
    if across is None:
        return shards
    everyone = ranks_of(None)
    return everyone if len(shards) * distributed.get_world_size(across) == len(everyone) else None


def of_fsdp2(module: Any, mesh: Any) -> Optional[List[int]]:
    """Return the ranks of a module after ``fully_shard``; None where parts of it belong to different ranks.

    A parameter's own mesh has the dimensions of tensor parallelism as well, which the mesh of ``fully_shard`` lacks.
    """
    meshes = {id(p.device_mesh): p.device_mesh for p in module.parameters() if hasattr(p, "device_mesh")}
    if not meshes:
        return ranks_of(None) if mesh is None else _flat(mesh)
    first, *others = {tuple(_flat(each)) for each in meshes.values()}
    return None if others else list(first)


def _flat(mesh: Any) -> List[int]:
    return [int(rank) for rank in mesh.mesh.flatten().tolist()]
