"""Ranks that differ on purpose, or step otherwise, and replicas that stay equal all the same."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import batches, fit, net, state, stepped, steps
from tests.harm.program import program

STEPS = 260


def long(wrapped, rank, optimizer, steps=STEPS):
    fit(wrapped, rank, steps=steps, optimizer=optimizer, other=True)
    return state(wrapped)


@program(sample=True)
def rate_of_its_own_table(rank, size):
    wrapped = DDP(net())
    table = nn.Parameter(torch.zeros(5))
    groups = [{"params": wrapped.parameters()}, {"params": [table], "lr": 0.02 + 0.005 * rank}]
    for x, y in steps(torch.optim.SGD(groups, 0.05), rank, STEPS):
        ((wrapped(x, other=True) - y).pow(2).mean() + (table - rank).pow(2).sum()).backward()
    return state(wrapped), table


class Noisy(torch.optim.SGD):
    """SGD that keeps a seed, a rank and the time of its start in its groups."""

    def __init__(self, parameters, lr, rank):
        super().__init__(parameters, lr)
        for group in self.param_groups:
            group.update(seed=rank, started=1000.5 + rank, place=0.1 * rank)


def personal_heads_beside_a_shared_trunk(rank, size):
    """Of a shape of its own, and of one shape with a rate of its own."""
    found = []
    for wide, kind in ((1 + rank, torch.optim.SGD), (2, torch.optim.Adam)):
        torch.manual_seed(rank)
        trunk, head = DDP(net()), nn.Linear(2, wide)
        groups = [{"params": trunk.parameters()}, {"params": head.parameters(), "lr": 0.001 * (rank + 1)}]
        for x, _ in steps(kind(groups, 0.02), rank, STEPS):
            head(trunk(x, other=True)).pow(2).mean().backward()
        found += [state(trunk), state(head)]
    return found


def personal_part_inside_that_ddp_ignores(rank, size):
    model = net()
    model.mine = nn.Linear(2, 2)
    with torch.no_grad():
        model.mine.weight.mul_(rank + 1)
    names = [name for name, _ in model.named_parameters() if name.startswith("mine")]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    wrapped = DDP(model)
    for x, y in steps(torch.optim.SGD(wrapped.parameters(), 0.05), rank, STEPS):
        (model.mine(wrapped(x, other=True)) - y).pow(2).mean().backward()
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


class Langevin(torch.optim.SGD):
    """The noise is within the step."""

    def __init__(self, parameters, lr, rank):
        super().__init__(parameters, lr)
        self.noise = torch.Generator().manual_seed(rank)

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(torch.randn(each.shape, generator=self.noise), alpha=1e-3)


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


def local_training_afterwards(rank, size):
    wrapped = DDP(net())
    long(wrapped, rank, torch.optim.SGD(wrapped.parameters(), 0.05), steps=60)
    mine = copy.deepcopy(wrapped.module)
    fit(mine, rank, steps=STEPS, other=True)
    return state(mine), state(wrapped)


def local_sgd(rank, size):
    """DiLoCo: steps of each rank's own under no_sync, then parameters are averaged."""
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    for _ in range(30):
        with wrapped.no_sync():
            fit(wrapped, rank, steps=8, optimizer=optimizer, other=True)
        with torch.no_grad():
            for each in wrapped.parameters():
                dist.all_reduce(each)
                each.div_(size)
    return state(wrapped)


def gan_with_two_optimizers(rank, size):
    maker, critic = DDP(nn.Linear(3, 4)), DDP(nn.Linear(4, 1))
    makes, judges = torch.optim.Adam(maker.parameters(), 0.01), torch.optim.Adam(critic.parameters(), 0.02)
    draws = torch.Generator().manual_seed(rank)
    for step in range(STEPS // 2):
        real, seed = torch.randn(5, 4, generator=draws), torch.randn(5, 3, generator=draws)
        judges.zero_grad()
        critic(torch.cat([real, maker(seed).detach()])).tanh().mul(
            torch.tensor([[1.0]] * 5 + [[-1.0]] * 5)
        ).sum().backward()
        judges.step()
        if step % 3 == 0:
            critic.requires_grad_(False)
            makes.zero_grad()
            critic(maker(seed)).tanh().sum().backward()
            makes.step()
            critic.requires_grad_(True)
    return state(maker), state(critic)


def accumulation_of_different_lengths(rank, size):
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.02)
    for turn in range(60):
        parts = list(batches(rank * 1000 + turn, 2 + rank))
        optimizer.zero_grad()
        for x, y in parts[:-1]:
            with wrapped.no_sync():
                (wrapped(x, other=True) - y).pow(2).mean().backward()
        x, y = parts[-1]
        (wrapped(x, other=True) - y).pow(2).mean().backward()
        optimizer.step()
    return state(wrapped)


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


def one_step_more_without_gradients(parameters, rank):
    optimizer = torch.optim.SGD(parameters, 0.05)
    if rank == 0:
        optimizer.step()
    return optimizer


def warm_start_of_adam_on_one_rank(parameters, rank):
    """So that its state is there before the first checkpoint is read."""
    optimizer = torch.optim.Adam(parameters, 0.01)
    for _ in range(2 * rank):
        optimizer.zero_grad()
        optimizer.step()
    return optimizer


def calls_that_differ(parameters, rank):
    optimizer = Lars(parameters, 0.05)
    for _ in range(3 * rank):
        optimizer.step()
    return optimizer


MAKES = {
    "one step more": one_step_more_without_gradients,
    "a warm start": warm_start_of_adam_on_one_rank,
    "calls that differ": calls_that_differ,
    "numbers that it keeps": lambda parameters, rank: Noisy(parameters, 0.05, rank),
    "noise within the step": lambda parameters, rank: Langevin(parameters, 0.05, rank),
    "zero redundancy": lambda parameters, rank: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01),
}


@program(sample=True)
def optimizers_that_ranks_use_otherwise(rank, size):
    found = {}
    for name, make in MAKES.items():
        wrapped = DDP(net())
        found[name] = long(wrapped, rank, make(wrapped.parameters(), rank))
    return found


def scheduler_read_ahead_by_one_rank(rank, size):
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    if rank == 0:
        trial = torch.optim.SGD([torch.zeros(1)], 0.05)
        preview = torch.optim.lr_scheduler.CosineAnnealingLR(trial, 400)
        for _ in range(10):
            trial.step()
            preview.step()
    for x, y in batches(rank, STEPS):
        stepped(wrapped, optimizer, x, y, other=True)
        schedule.step()
    return state(wrapped)
