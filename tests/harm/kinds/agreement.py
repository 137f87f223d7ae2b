"""Stores, constructors and groups: nothing of another's stands in them, and nobody waits for nobody."""

import copy
import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, fitted, net, state
from tests.harm.program import program, script


@program(sample=True)
def constructor_fails(rank, size):
    """On one rank: of a model without gradients, then for devices that are not there; and on all ranks."""
    found = []
    for fails, make in (
        (rank == 0, lambda: DDP(net().requires_grad_(False))),
        (rank == 1, lambda: DDP(net(), device_ids=[0, 1])),
        (rank == 1, lambda: DDP(net(), device_ids=["cuda:7"])),
        (True, lambda: DDP(nn.ReLU())),
        (True, lambda: DDP(net(), dim="x", device_ids=[9])),
    ):
        try:
            found.append(make() if fails else None)
        except Exception as failure:
            found.append(type(failure).__name__)
        found.append(state(fitted(rank)))
    return found


def own_module_raises_while_it_is_wrapped(rank, size):
    class Choosy(DDP):
        def __init__(self, module, ready):
            if not ready:
                raise ValueError("not ready")
            super().__init__(module)

    tries = 0
    wrapped = None
    while wrapped is None:
        try:
            wrapped = Choosy(net(), ready=tries >= rank)
        except ValueError:
            tries += 1
    fit(wrapped, rank, other=True)
    return tries, state(wrapped)


def copy_that_one_rank_alone_tries(rank, size):
    """Rank 0 looks at a copy; then all train another with a backward a head."""
    wrapped = DDP(net())
    if rank == 0:
        trial = copy.deepcopy(wrapped)
        trial.eval()(torch.ones(1, 4))
    second = copy.deepcopy(wrapped)
    optimizer = torch.optim.SGD(second.parameters(), 0.1)
    fit(second, rank, optimizer=optimizer, other=True)
    return state(second)


class Minimal(dist.Store):
    """A store in Python: what torch asks for and no more."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.limit = inner, timedelta(seconds=60)

    def set(self, key, value):
        self.inner.set(key, value)

    def get(self, key):
        return self.inner.get(key)

    def add(self, key, amount):
        return self.inner.add(key, amount)

    def wait(self, keys, limit=None):
        self.inner.wait(keys, limit or self.limit)

    def set_timeout(self, limit):
        self.limit = limit


@program(group=False, sample=True)
def store_of_ones_own(rank, size):
    inner = dist.FileStore(os.path.join(tempfile.gettempdir(), "store"), size)
    dist.init_process_group("gloo", store=Minimal(inner), rank=rank, world_size=size)
    return state(fitted(rank))


@program(group=False)
def fake_backend(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    box, model = torch.ones(2), net()
    dist.all_reduce(box)
    fully_shard(model, mesh=init_device_mesh("cpu", (8,)))
    return dist.get_world_size(), box, [tuple(each.to_local().shape) for each in model.parameters()]


@program(group=False)
def keys_of_stores_are_counted(rank, size):
    """Of a TCPStore, a FileStore, and a HashStore of one rank."""
    path, counts = os.path.join(tempfile.gettempdir(), "meet"), []
    stores = (
        (lambda: dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0), rank, size),
        (lambda: dist.FileStore(path, size), rank, size),
        (dist.HashStore, 0, 1),
    )
    for make, own, count in stores:
        store = make()
        dist.init_process_group("gloo", store=store, rank=own, world_size=count)
        fitted(rank)
        dist.barrier()
        counts.append(store.num_keys())
        dist.barrier()
        dist.destroy_process_group()
    return counts


def prefix_that_the_program_waits_on(rank, size):
    store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
    before = store.add("counter", 1)
    fit(DDP(net()), rank, other=True)
    dist.barrier()
    return before > 0, store.add("counter", 0), store.check(["ddp"]), store.check(["counter"])


@program(ranks=3)
def models_on_sub_groups(rank, size):
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    models = [DDP(net(seed), process_group=group) for seed, group in enumerate(groups) if dist.get_rank(group) >= 0]
    for each in models:
        fit(each, rank, other=True)
    return [state(each) for each in models]


@program(ranks=3)
def one_rank_wraps_nothing(rank, size):
    pair = dist.new_group([0, 1])
    if rank == 2:
        return fit(net(), rank)
    wrapped = DDP(net(), process_group=pair)
    fit(wrapped, rank, other=True)
    return state(wrapped)


def models_in_another_order(rank, size):
    """Each rank wraps two models on groups of one in an order of its own, then a common one."""
    alone = [dist.new_group([each]) for each in range(size)]
    for seed in (0, 1) if rank else (1, 0, 2):
        fit(DDP(net(seed), process_group=alone[rank]), rank, other=True)
    wrapped = DDP(net(9))
    fit(wrapped, rank, other=True)
    return state(wrapped)


def group_made_anew(rank, size):
    found = []
    for turn in range(3):
        wrapped = DDP(net(turn))
        fit(wrapped, rank, other=True)
        found.append(state(wrapped))
        dist.barrier()
        dist.destroy_process_group()
        if turn < 2:
            path = os.path.join(tempfile.gettempdir(), f"again{turn}")
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    return found


def different_environment_on_each_rank(rank, size):
    os.environ["MY_SETTING"] = str(rank)
    import logging

    logging.basicConfig(level=logging.ERROR if rank else logging.INFO)
    return state(fitted(rank))


script("agreement", "spawned_ranks", ranks=1)
