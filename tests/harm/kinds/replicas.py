"""Ranks that differ on purpose, or step otherwise, and replicas that stay equal all the same."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import batches, fit, net, state, stepped
from tests.harm.program import program

STEPS = 260


def long(wrapped, rank, optimizer, steps=STEPS):
    fit(wrapped, rank, steps=steps, optimizer=optimizer, other=True)
    return state(wrapped)


def warm_start_of_adam_on_one_rank(rank, size):
    """So that its state is there before the first checkpoint is read."""
    wrapped = DDP(net())
    optimizer = torch.optim.Adam(wrapped.parameters(), 0.01)
    if rank == 1:
        for _ in range(2):
            optimizer.zero_grad()
            optimizer.step()
    return long(wrapped, rank, optimizer)


@program(sample=True)
def rate_of_its_own_table(rank, size):
    wrapped = DDP(net())
    table = nn.Parameter(torch.zeros(5))
    groups = [{"params": wrapped.parameters()}, {"params": [table], "lr": 0.02 + 0.005 * rank}]
    optimizer = torch.optim.SGD(groups, 0.05)
    for x, y in batches(rank, STEPS):
        optimizer.zero_grad()
        ((wrapped(x, other=True) - y).pow(2).mean() + (table - rank).pow(2).sum()).backward()
        optimizer.step()
    return state(wrapped), table


def personal_head_of_one_shape(rank, size):
    torch.manual_seed(rank)
    trunk, head = DDP(net()), nn.Linear(2, 2)
    optimizer = torch.optim.Adam(
        [{"params": trunk.parameters()}, {"params": head.parameters(), "lr": 0.001 * (rank + 1)}]
    )
    for x, y in batches(rank, STEPS):
        optimizer.zero_grad()
        (head(trunk(x, other=True)) - y).pow(2).mean().backward()
        optimizer.step()
    return state(trunk), state(head)


def personal_part_inside_that_ddp_ignores(rank, size):
    model = net()
    model.mine = nn.Linear(2, 2)
    with torch.no_grad():
        model.mine.weight.mul_(rank + 1)
    names = [name for name, _ in model.named_parameters() if name.startswith("mine")]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    wrapped = DDP(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    for x, y in batches(rank, STEPS):
        optimizer.zero_grad()
        (model.mine(wrapped(x, other=True)) - y).pow(2).mean().backward()
        optimizer.step()
    return state(wrapped)


@program(sample=True)
def langevin_noise(rank, size):
    wrapped, noise = DDP(net()), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.02)
    for x, y in batches(rank, STEPS):
        stepped(wrapped, optimizer, x, y, other=True)
        with torch.no_grad():
            for each in wrapped.parameters():
                each.add_(torch.randn(each.shape, generator=noise), alpha=1e-3)
    return state(wrapped)


def buffers_that_differ_on_purpose(rank, size):
    model = net()
    model.register_buffer("rank", torch.tensor(float(rank)))
    model.register_buffer("seen", torch.zeros(3))

    def count(part, given):
        part.seen += rank + 1

    model.register_forward_pre_hook(count)
    wrapped = DDP(model, broadcast_buffers=False)
    return long(wrapped, rank, torch.optim.SGD(wrapped.parameters(), 0.05))


def local_training_before_ddp(rank, size):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    fit(model, rank, steps=20 + 5 * rank, optimizer=optimizer, other=True)
    wrapped = DDP(model)
    return long(wrapped, rank, torch.optim.SGD(wrapped.parameters(), 0.05))


def groups_by_rank(rank, size):
    """Each rank steps the parameters it owns, and sends them to the others."""
    wrapped = DDP(net())
    mine = [each for index, each in enumerate(wrapped.parameters()) if index % size == rank]
    optimizer = torch.optim.Adam(mine, 0.01)
    for x, y in batches(rank, STEPS):
        wrapped.zero_grad()
        (wrapped(x, other=True) - y).pow(2).mean().backward()
        optimizer.step()
        for index, each in enumerate(wrapped.parameters()):
            dist.broadcast(each.data, index % size)
    return state(wrapped)


def freezing_on_a_schedule(rank, size):
    wrapped = DDP(net(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    for epoch in range(6):
        for each in wrapped.module.other.parameters():
            each.requires_grad_(epoch % 2 == 0)
        fit(wrapped, rank, steps=40, optimizer=optimizer, other=epoch % 2 == 0)
    return state(wrapped)


class Lars(torch.optim.Optimizer):
    """An optimizer of the program's own, with a trust ratio a layer."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "calls": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["calls"] += 1
            for each in group["params"]:
                if each.grad is not None:
                    ratio = each.norm() / (each.grad.norm() + 1e-6)
                    each.sub_(each.grad, alpha=group["lr"] * min(1.0, ratio.item()))


def lars_with_calls_that_differ(rank, size):
    wrapped = DDP(net())
    optimizer = Lars(wrapped.parameters(), 0.05)
    for _ in range(3 * rank):
        optimizer.step()
    return long(wrapped, rank, optimizer)
