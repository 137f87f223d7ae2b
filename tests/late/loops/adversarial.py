"""Two models against each other, losses on gradients of inputs, and contrastive losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Blocks, loss, mlp, uneven


@kind(three=True)
def gan(loop: Loop) -> None:
    """DCGAN: the discriminator has two backwards, then the generator has one through both models."""
    d, g = loop.wrap(mlp(1)), loop.wrap(mlp())
    of_d, of_g = torch.optim.Adam(d.parameters(), lr=0.01), torch.optim.Adam(g.parameters(), lr=0.01)
    for step in loop.steps():
        of_d.zero_grad()
        fake = g(loop.batch(step, 1))
        (d(loop.batch(step)) - 1).pow(2).mean().backward()
        loop.sync(d)
        d(fake.detach()).pow(2).mean().backward()
        loop.update(of_d, d)
        of_g.zero_grad()
        (d(fake) - 1).pow(2).mean().backward()
        loop.update(of_g, g)


@kind()
def gan_toggled(loop: Loop) -> None:
    """CycleGAN's set_requires_grad: the discriminator is frozen while the generator learns."""
    d, g = loop.wrap(mlp(1)), loop.wrap(mlp())
    of_d, of_g = sgd(d), sgd(g)
    for step in loop.steps():
        fake = g(loop.batch(step, 1))
        d.requires_grad_(False)
        of_g.zero_grad()
        (d(fake) - 1).pow(2).mean().backward()
        loop.update(of_g, g)
        d.requires_grad_(True)
        of_d.zero_grad()
        ((d(loop.batch(step)) - 1).pow(2).mean() + d(fake.detach()).pow(2).mean()).backward()
        loop.update(of_d, d)


def _penalty(critic: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


@kind(three=True)
def wgan_gp(loop: Loop) -> None:
    """Wasserstein GAN: a penalty on the critic's slope, which is differentiated once more."""
    critic, g = loop.wrap(mlp(1)), loop.wrap(mlp())
    of_c, of_g = sgd(critic), sgd(g)
    for step in loop.steps():
        for turn in range(2):
            fake, real = g(loop.batch(step, 5 + turn)).detach(), loop.batch(step, turn)
            of_c.zero_grad()
            (critic(fake).mean() - critic(real).mean() + _penalty(critic, 0.3 * real + 0.7 * fake)).backward()
            loop.update(of_c, critic)
        of_g.zero_grad()
        (-critic(g(loop.batch(step, 9))).mean()).backward()
        loop.update(of_g, g)


@kind(plain="error", plain_cause="finished reduction")
def lazy_r1(loop: Loop) -> None:
    """StyleGAN2's lazy regularization: some backwards are of the penalty alone, without the last layer's bias."""
    d = loop.wrap(mlp(1))
    of_d = sgd(d)
    for step in loop.steps():
        of_d.zero_grad()
        d(loop.batch(step)).pow(2).mean().backward()
        loop.update(of_d, d)
        if step % 2:
            of_d.zero_grad()
            _penalty(d, loop.batch(step, 1)).backward()
            loop.update(of_d, d)


@kind(three=True)
def fgsm_backward_of_inputs(loop: Loop) -> None:
    """An attack by ``backward(inputs=[x])``, which leaves parameters alone, before each step."""
    for model, step in loop.training(mlp()):
        x = loop.batch(step).requires_grad_()
        loss(model(x)).backward(inputs=[x])
        loss(model((x + 0.1 * x.grad.sign()).detach())).backward()


@kind(plain="error", plain_cause=UNFINISHED)
def fgsm_skipping(loop: Loop) -> None:
    """The same attack by ``torch.autograd.grad``, on a model that leaves blocks out."""
    for model, step in loop.training(Blocks()):
        x, skips = loop.batch(step).requires_grad_(), uneven(loop.rank, step)
        (slope,) = torch.autograd.grad(loss(model(x, skips)), x)
        loss(model((x + 0.1 * slope.sign()).detach(), skips)).backward()


@kind(plain="parts")
def vaegan_retained(loop: Loop) -> None:
    """VAE-GAN: a retained graph has two backwards; DDP adds the second gradients to averages as they are."""
    encoder, decoder, d = loop.wrap(mlp()), loop.wrap(mlp()), loop.wrap(mlp(1))
    for step in loop.trained(encoder, decoder):
        made = decoder(encoder(loop.batch(step)))
        loss(made).backward(retain_graph=True)
        loop.sync(encoder, decoder)
        (d(made) - 1).pow(2).mean().backward()


def contrast(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(one @ other.t(), torch.arange(len(one)))


class _Gather(torch.autograd.Function):
    """Gathers features, and sums what all ranks send back: a collective of the user's own within backward."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.zeros_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(context: Any, slope: torch.Tensor) -> torch.Tensor:
        slope = slope.contiguous()
        distributed.all_reduce(slope)
        return slope[distributed.get_rank()]


@kind(plain="error", plain_cause=UNFINISHED)
def gathered_with_gradients_and_skips(loop: Loop) -> None:
    """A collective of the user's own in the backward of an encoder that leaves blocks out."""
    for model, step in loop.training(Blocks()):
        one = _Gather.apply(model(loop.batch(step), uneven(loop.rank, step))).flatten(0, 1)
        contrast(one, one.roll(1, 0)).backward()
