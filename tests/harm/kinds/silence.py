"""The one change to a right program, layers that all ranks skip, has its line; nothing else has one."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.kinds.draws import PACKAGE, Encoder, trained
from tests.harm.program import program, script

SAME = r"skips? the same"
TRAINER = "transformers.trainer"


def wavlm(rate=0.3):
    from tests.support import zoo

    return zoo.tiny_model("wavlm").build(rate)


def steps(model, rank, count=4):
    draws = torch.Generator().manual_seed(rank)
    for _ in range(count):
        model(torch.randn(2, 200, generator=draws)).last_hidden_state.pow(2).mean().backward()
        model.zero_grad()


@program(needs=TRAINER, due=(SAME,))
def wavlm_whose_flag_is_there(rank, size):
    wrapped = DDP(wavlm(), find_unused_parameters=True)
    steps(wrapped, rank)
    return sorted(wrapped.state_dict())


@program(needs=TRAINER)
def wavlm_that_skips_nothing(rank, size):
    """At a rate of 0, in evaluation, and outside of a wrapper."""
    wrapped = DDP(wavlm(0.0), find_unused_parameters=True)
    steps(wrapped, rank)
    evaluated = DDP(wavlm().eval(), find_unused_parameters=True)
    outputs = [evaluated(torch.ones(1, 200)).last_hidden_state for _ in range(3)]
    alone, box = wavlm(), torch.rand(3)
    steps(alone, rank)
    dist.all_reduce(box)
    return wrapped.state_dict(), outputs, alone.state_dict(), box


@program(needs=TRAINER, ranks=1)
def wavlm_on_one_rank(rank, size):
    wrapped = DDP(wavlm(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for _ in range(4):
        wrapped(torch.randn(2, 200)).last_hidden_state.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return wrapped.state_dict()


@program(needs=PACKAGE, due=(SAME,), ranks=3)
def encoder_of_ones_own(rank, size):
    return len(trained(Encoder, rank, steps=30, rate=0.2)[0])


@program(needs=TRAINER, settings={"DDPFIX_LAYERDROP": "off"})
def wavlm_with_layers_kept(rank, size):
    """The 0 is not the user's, and nobody is accused of it."""
    wrapped = DDP(wavlm(1e-9), find_unused_parameters=True)
    steps(wrapped, rank)
    return sorted(wrapped.state_dict())


@program(needs=TRAINER, settings={"DDPFIX_LAYERDROP": "stock"})
def wavlm_as_shipped(rank, size):
    wrapped = DDP(wavlm(), find_unused_parameters=True)
    steps(wrapped, rank)
    return wrapped.state_dict(), wrapped.module.config.layerdrop


@program(sample=True)
def nothing_wrong_nothing_said(rank, size):
    from tests.harm.made import fit, net, state

    wrapped = DDP(net())
    fit(wrapped, rank, steps=120, other=True)
    return state(wrapped)


script("silence", "trainer_with_wavlm", needs=TRAINER, due=(SAME,))
script("silence", "trainer_with_wavlm", variant="off", needs=TRAINER, settings={"DDPFIX_LAYERDROP": "off"})
script("silence", "accelerate_loop")
script("silence", "lightning_loop")
