"""Runs of a few steps whose ranks differ for a while, or at the end, and are right."""

import copy
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import batches, net, state, stepped
from tests.harm.program import program


def trained(rank, steps=6, between=lambda step, wrapped: None, rate=0.05):
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), rate, momentum=0.9)
    for step, (x, y) in enumerate(batches(rank, steps)):
        stepped(wrapped, optimizer, x, y, other=True)
        between(step, wrapped)
    return wrapped


def model_of_one_rank_changed_when_it_is_done(rank, size):
    """The last rank halves it for its export, and leaves the group last."""
    wrapped = trained(rank, 5)
    if rank == size - 1:
        with torch.no_grad():
            for each in wrapped.parameters():
                each.mul_(0.5)
        time.sleep(2)
    return state(wrapped)


def noisy_evaluation(step, wrapped):
    """Each rank adds noise of its own after a step, looks at the loss, and restores the weights."""
    kept = copy.deepcopy(wrapped.module.state_dict())
    with torch.no_grad():
        for each in wrapped.module.parameters():
            each.add_(0.1 * (dist.get_rank() + 1))
        wrapped.module(torch.ones(2, 4))
    wrapped.module.load_state_dict(kept)


def apart_and_together(step, wrapped):
    """Noise of each rank after the third step, and the first rank's weights for all after the fifth."""
    with torch.no_grad():
        for each in wrapped.module.parameters():
            if step == 2:
                each.add_(0.01 * dist.get_rank())
            if step == 4:
                dist.broadcast(each.data, 0)


def search_for_a_rate(step, wrapped):
    """Before the training, steps at growing rates, each rank's own, on a copy."""
    own = copy.deepcopy(wrapped.module)
    optimizer = torch.optim.SGD(own.parameters(), 0.01 * 2**step * (dist.get_rank() + 1))
    own(torch.ones(2, 4), other=True).sum().backward()
    optimizer.step()


@program(sample=True)
def ranks_that_differ_for_a_while(rank, size):
    return [state(trained(rank, 9, between)) for between in (noisy_evaluation, apart_and_together, search_for_a_rate)]


def sharpness_aware_steps(rank, size):
    """Up the gradient, and down with the gradient from there: weights are moved between the two backwards."""
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    for x, y in batches(rank, 6):
        optimizer.zero_grad()
        (wrapped(x, other=True) - y).pow(2).mean().backward()
        moves = [0.05 * each.grad for each in wrapped.parameters()]
        with torch.no_grad():
            for each, move in zip(wrapped.parameters(), moves):
                each.add_(move)
        optimizer.zero_grad()
        (wrapped(x, other=True) - y).pow(2).mean().backward()
        with torch.no_grad():
            for each, move in zip(wrapped.parameters(), moves):
                each.sub_(move)
        optimizer.step()
    return state(wrapped)


def five_folds_with_a_model_each(rank, size):
    losses = []
    for fold in range(5):
        wrapped = trained(rank, 5, rate=0.01 * (fold + 1))
        losses.append(state(wrapped))
    return losses


def batches_alike_for_a_while(rank, size):
    """A warm-up on the same five batches on all ranks, and three on each rank's own."""
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    for x, y in [*batches(0, 5), *batches(rank + 1, 3)]:
        stepped(wrapped, optimizer, x, y, other=True)
    return state(wrapped)
