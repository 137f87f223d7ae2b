"""Two models against each other, and losses on gradients of inputs."""

from __future__ import annotations

from typing import Any

import torch

from tests.late.loops.kinds import TWICE, UNFINISHED, kind
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


@kind(three=True)
def gan_one_backward(loop: Loop) -> None:
    """Two forwards of the discriminator, and one backward of the sum."""
    d, g = loop.wrap(mlp(1)), loop.wrap(mlp())
    of_d, of_g = sgd(d), sgd(g)
    for step in loop.steps():
        fake = g(loop.batch(step, 1))
        of_d.zero_grad()
        ((d(loop.batch(step)) - 1).pow(2).mean() + d(fake.detach()).pow(2).mean()).backward()
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
    """StyleGAN2's lazy regularization: every second step has a backward of the penalty alone.

    The last layer's bias has no part in the slope.
    """
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
    model = loop.wrap(mlp())
    optimizer = sgd(model)
    for step in loop.steps():
        x = loop.batch(step).requires_grad_()
        loss(model(x)).backward(inputs=[x])
        optimizer.zero_grad()
        loss(model((x + 0.1 * x.grad.sign()).detach())).backward()
        loop.update(optimizer, model)


@kind()
def fgsm_autograd_grad(loop: Loop) -> None:
    """The same attack by ``torch.autograd.grad``, three times in a row."""
    for model, step in loop.training(mlp()):
        x = loop.batch(step)
        for _ in range(3):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(loss(model(x)), x)
            x = x + 0.1 * slope.sign()
        loss(model(x.detach())).backward()


@kind(plain="error", plain_cause=UNFINISHED)
def fgsm_skipping(loop: Loop) -> None:
    """The same attack once, on a model that leaves blocks out."""
    for model, step in loop.training(Blocks()):
        x, skips = loop.batch(step).requires_grad_(), uneven(loop.rank, step)
        (slope,) = torch.autograd.grad(loss(model(x, skips)), x)
        loss(model((x + 0.1 * slope.sign()).detach(), skips)).backward()


@kind()
def fgsm_whole_backward(loop: Loop) -> None:
    """The same attack by a backward that also fills the parameters' gradients, which are thrown away."""
    model = loop.wrap(mlp())
    optimizer = sgd(model)
    for step in loop.steps():
        x = loop.batch(step).requires_grad_()
        loss(model(x)).backward()
        attacked = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        loss(model(attacked)).backward()
        loop.update(optimizer, model)


@kind()
def free_adversarial(loop: Loop) -> None:
    """One backward serves the attack and the model, and the batch is trained on again with the noise so far."""
    model = loop.wrap(mlp())
    optimizer = sgd(model)
    noise = torch.zeros_like(loop.batch(0))
    for step in loop.steps():
        for _ in range(2):
            noise.requires_grad_()
            optimizer.zero_grad()
            loss(model(loop.batch(step) + noise)).backward()
            loop.update(optimizer, model)
            noise = (noise + 0.1 * noise.grad.sign()).detach()


@kind()
def virtual_adversarial(loop: Loop) -> None:
    """VAT: a forward without gradients, a slope at a random direction, then the loss."""
    for model, step in loop.training(mlp()):
        x = loop.batch(step)
        with torch.no_grad():
            wanted = model(x)
        direction = (0.1 * loop.batch(step, 1)).requires_grad_()
        (slope,) = torch.autograd.grad((model(x + direction) - wanted).pow(2).mean(), direction)
        (loss(model(x)) + (model(x + slope) - wanted).pow(2).mean()).backward()


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, slope: torch.Tensor) -> torch.Tensor:
        return -slope


@kind()
def gradient_reversal(loop: Loop) -> None:
    """A domain classifier behind a reversed gradient, and a label classifier, in one backward."""
    trunk, label, domain = loop.wrap(mlp()), loop.wrap(mlp(1)), loop.wrap(mlp(1))
    for step in loop.trained(trunk, label, domain):
        h = trunk(loop.batch(step))
        (loss(label(h)) + loss(domain(_Reversed.apply(h)))).backward()


@kind(plain="parts")
def vaegan_retained(loop: Loop) -> None:
    """VAE-GAN: a backward for the encoder and another for the decoder, through the same retained graph.

    Both optimizers step in the end. DDP has averaged the encoder's and the decoder's first gradients by then, and adds
    the second ones as they are.
    """
    encoder, decoder, d = loop.wrap(mlp()), loop.wrap(mlp()), loop.wrap(mlp(1))
    for step in loop.trained(encoder, decoder):
        made = decoder(encoder(loop.batch(step)))
        loss(made).backward(retain_graph=True)
        loop.sync(encoder, decoder)
        (d(made) - 1).pow(2).mean().backward()


class _Judged(torch.nn.Module):
    """An autoencoder with the critic of what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = mlp(), mlp(1)

    def forward(self, x: torch.Tensor) -> Any:
        made = self.maker(x)
        return made, self.critic(made)


@kind(plain="error", plain_cause=TWICE, three=True, close=1e-7)
def vaegan_in_one(loop: Loop) -> None:
    """The same with all parts in one model: the second backward comes to the first part again."""
    for model, step in loop.training(_Judged()):
        made, judged = model(loop.batch(step))
        loss(made).backward(retain_graph=True)
        loop.sync(model)
        (judged - 1).pow(2).mean().backward()


@kind()
def critic_steps_differ(loop: Loop) -> None:
    """The critic learns five times before the generator does, and the generator runs without gradients meanwhile."""
    critic, g = loop.wrap(mlp(1)), loop.wrap(mlp())
    of_c, of_g = sgd(critic), sgd(g)
    for step in loop.steps(6):
        with torch.no_grad():
            fake = g(loop.batch(step, 1))
        of_c.zero_grad()
        (critic(fake).mean() - critic(loop.batch(step)).mean()).tanh().backward()
        loop.update(of_c, critic)
        if step % 3 == 2:
            of_g.zero_grad()
            (-critic(g(loop.batch(step, 2)))).mean().backward()
            loop.update(of_g, g)
