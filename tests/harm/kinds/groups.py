"""Process groups of the program's own: their ranks may be nobody that torch knows, and nobody else is to be met."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, fit_heads, fitted, in_threads, net, state, two
from tests.harm.program import program


def done(result):
    """Return work that has ended."""
    future = Future()
    future.set_result(result)
    return _create_work_from_future(future)


class Alone(dist.ProcessGroup):
    """A group in Python in which every rank has what this one has, as torchft's for a replica that is alone."""

    def __init__(self, size=1):
        super().__init__(0, size)
        self.many, self.called = size, []

    def broadcast(self, tensors, options):
        self.called.append("broadcast")
        return done(tensors)

    def allreduce(self, tensors, options):
        self.called.append("allreduce")
        return done(tensors)

    def allgather(self, outputs, inputs, options):
        for row, one in zip(outputs, inputs):
            for each in row:
                each.copy_(one)
        return done(outputs)

    def _allgather_base(self, output, one, options=None):
        output.copy_(one.repeat(self.many))
        return done(output)

    def _reduce_scatter_base(self, output, one, options=None):
        output.copy_(one[: len(output)])
        return done(output)

    # The names that torch gives the same in later releases.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base

    def size(self):
        return self.many

    getSize = size

    def getBackendName(self):
        return "alone"


class Averaged(dist.ProcessGroup):
    """A group in Python that passes everything on to one of torch's, and divides by a number of its own."""

    def __init__(self, inner):
        super().__init__(inner.rank(), inner.size())
        self.inner, self.steps = inner, 0

    def broadcast(self, tensors, options):
        return self.inner.broadcast(tensors, options)

    def allreduce(self, tensors, options):
        self.steps += 1
        return self.inner.allreduce(tensors, options)

    def allgather(self, outputs, inputs, options):
        return self.inner.allgather(outputs, inputs, options)

    def size(self):
        return self.inner.size()

    getSize = size

    def getBackendName(self):
        return "averaged"


@program(sample=True)
def beside_the_default_group(rank, size):
    """Each rank by itself, with data and a number of steps of its own."""
    dist.barrier()  # Plain torch fails where one rank leaves the group while the other still connects.
    wrapped = DDP(net(rank), process_group=Alone())
    fit(wrapped, rank, steps=3 + rank, other=True)
    return state(wrapped), wrapped.process_group.called


@program(group=False)
def without_a_default_group(rank, size):
    """Of this rank alone, and of ranks that are not there."""
    wrapped, group = DDP(net(), process_group=Alone()), Alone(4)
    fit(wrapped, rank, steps=3 + rank, other=True)
    wrapped.eval()
    flagged = DDP(net(), process_group=group, find_unused_parameters=True)
    with flagged.no_sync():
        flagged(torch.ones(2, 4)).sum().backward()
    fit(flagged, rank, steps=4)
    return state(wrapped), wrapped(torch.ones(1, 4)), dist.is_initialized(), state(flagged), group.called


@program(group=False)
def default_group_that_stands_for_many(rank, size):
    """A backend of the program's own as the default group, with a store that nobody else writes into."""
    dist.Backend.register_backend("alone", lambda store, rank, size, limit: Alone(size), devices=["cpu"])
    dist.init_process_group("alone", store=dist.HashStore(), rank=0, world_size=8)
    wrapped = fitted(rank)
    dist.destroy_process_group()
    return state(wrapped)


def passed_on_to_gloo(rank, size):
    """Ranks meet in it, a backward a head, and the program counts its all-reduces."""
    group = Averaged(dist.new_group(list(range(size))))
    return fit_heads(DDP(two(0), process_group=group), rank, 4), group.steps


def one_of_each_kind(rank, size):
    """A model over gloo, and one over a group of its own on rank 1 alone; steps take turns."""
    shared = DDP(net())
    own = DDP(net(1), process_group=Alone()) if rank else None
    for _ in range(4):
        fit(shared, rank, steps=1, other=True)
        if own is not None:
            fit(own, rank, steps=2, other=True)
    return state(shared), own and state(own)


def fully_sharded_over_it(rank, size):
    wrapped = FullyShardedDataParallel(net(rank), process_group=Alone(), device_id=torch.device("cpu"))
    fit(wrapped, rank, steps=3 + rank, other=True)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return [each.detach().clone() for each in wrapped.parameters()]


@program(group=False)
def ranks_in_threads(rank, size):
    """torch's own way to test: each thread is a rank, with a default group of its own."""
    from torch.testing._internal.distributed import multi_threaded_pg

    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store = dist.HashStore()
    models = [nn.Linear(4, 2) for _ in range(2)]

    def train(index):
        dist.init_process_group("threaded", rank=index, world_size=2, store=store)
        wrapped = DDP(models[index])
        fit(wrapped, index)
        found = state(wrapped)
        dist.destroy_process_group()
        return found

    return in_threads(train)


def trained_after_its_group_is_gone(rank, size):
    """The wrapper is kept, and its model is trained on by itself, with a new optimizer."""
    wrapped = DDP(net(), process_group=dist.new_group(list(range(size))))
    fit(wrapped, rank, other=True)
    dist.destroy_process_group()
    fit(wrapped.module, rank, steps=5 + rank, other=True)
    return state(wrapped)


class Inherits(dist.ProcessGroup):
    """A group in Python that has torch's methods."""


def class_with_the_methods_of_torch(rank, size):
    """torch asks Python for each method of such a class: what it finds must not be one of ddpfix."""
    fit(net(), rank)
    own, found = Inherits(rank, size), []
    for call in (own.barrier, lambda: own.allreduce([torch.ones(1)]), lambda: own.broadcast([torch.ones(1)], 0)):
        try:
            call()
        except Exception as error:
            found.append(type(error).__name__)
    return found, sorted(vars(dist.ProcessGroup)), type(vars(dist.ProcessGroup)["barrier"]).__name__


def long_wait_beside_a_group_with_a_short_limit(rank, size):
    """The limit of one group is none for a wait in another."""
    dist.new_group(timeout=datetime.timedelta(seconds=3))
    model = DDP(net())
    for step in range(3):
        loss = model(torch.ones(2, 4), other=True).sum()
        if rank and step == 1:
            time.sleep(8)
        loss.backward()
    return state(model)
