"""Exceptions that a loop catches, batches that it skips; and adversarial training."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn

from tests.late.loops.kinds import UNFINISHED, kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven


class Bad(nn.Module):
    """Raises in its forward where the input says so, after its first part has run."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = mlp(), mlp()

    def forward(self, x: torch.Tensor, bad: bool) -> torch.Tensor:
        x = self.one(x)
        if bad:
            raise ValueError("a bad batch")
        return self.other(x)


@kind(three=True)
def forward_raises(loop: Loop) -> None:
    """The forward raises on all ranks in some steps, and the loop goes on."""
    model = loop.wrap(Bad())
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        try:
            value = loss(model(loop.batch(step), step in (1, 2)))
        except ValueError:
            continue
        value.backward()
        loop.update(optimizer, model)


@kind(plain="hangs", ours="plain")
def forward_raises_on_one_rank(loop: Loop) -> None:
    """The forward raises on one rank, which goes on: ranks are a batch apart, and the last step has no partner."""
    model = loop.wrap(Bad())
    optimizer = sgd(model)
    for step in loop.steps():
        optimizer.zero_grad()
        try:
            value = loss(model(loop.batch(step), step == 2 and loop.rank == 1))
        except ValueError:
            loop.update(optimizer, model)
            continue
        value.backward()
        loop.update(optimizer, model)


def _raising(times: int) -> Any:
    left = [times]

    def hook(slope: torch.Tensor) -> None:
        if left[0]:
            left[0] -= 1
            raise MemoryError("out of memory, say")

    return hook


@kind(plain="error", plain_cause=UNFINISHED, ours="either", cause="ddpfix:|" + UNFINISHED)
def backward_raises(loop: Loop) -> None:
    """A hook raises within backward on all ranks; whether buckets were on their way is known to a rank only."""
    model = loop.wrap(Blocks())
    optimizer, hook = sgd(model), _raising(1)
    for step in loop.steps(5):
        optimizer.zero_grad()
        value = loss(model(loop.batch(step)))
        if step == 2:
            model.module.blocks[1].weight.register_hook(hook)
        try:
            value.backward()
        except MemoryError:
            continue
        loop.update(optimizer, model)


@kind()
def backward_raises_before_anything(loop: Loop) -> None:
    """A hook on the output raises before any parameter has got a gradient, on all ranks."""
    model = loop.wrap(Blocks())
    optimizer, hook = sgd(model), _raising(1)
    for step in loop.steps(5):
        optimizer.zero_grad()
        output = model(loop.batch(step))
        if step == 2:
            output.register_hook(hook)
        try:
            loss(output).backward()
        except MemoryError:
            continue
        loop.update(optimizer, model)


@kind()
def retried_before_backward(loop: Loop) -> None:
    """A forward that runs out of memory on one rank is retried there with two halves; ranks stay together."""
    for model, step in loop.training(Bad(), count=5):
        x = loop.batch(step)
        try:
            value = loss(model(x, step == 2 and loop.rank == 0))
        except ValueError:
            with model.no_sync():
                (loss(model(x[:2], False)) / 2).backward()
            value = loss(model(x[2:], False)) / 2
        value.backward()


@kind(plain="hangs", ours="plain", three=True)
def nan_guard_with_a_constant(loop: Loop) -> None:
    """A NaN loss is replaced by a constant: nothing on this rank shows that a backward of the model was meant."""
    for model, step in loop.training(mlp(), count=5):
        value = loss(model(loop.batch(step)))
        if step == 2 and loop.rank == 0:
            value = torch.zeros((), requires_grad=True)
        value.backward()


@kind(
    plain="error",
    plain_cause=UNFINISHED,
    ours="error",
    cause="(?s)cause: earlier steps ran 2 backwards, the last one ran 1.*cure: call backward equally often",
)
def left_after_the_first_backward(loop: Loop) -> None:
    """An early ``continue`` after the first of two backwards; gradients may have been used by hand before it."""
    model = loop.wrap(Apart(2))
    optimizer = sgd(model)
    for step in loop.steps(5):
        optimizer.zero_grad()
        first, second = model(loop.batch(step))
        loss(first).backward()
        loop.sync(model)
        if step in (1, 2):
            continue
        loss(second).backward()
        loop.update(optimizer, model)


# Two models against each other, losses on gradients of inputs, and contrastive losses.


@kind(three=True, theme="adversarial")
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


@kind(theme="adversarial")
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


@kind(three=True, theme="adversarial")
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


@kind(plain="error", plain_cause="finished reduction", theme="adversarial")
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


@kind(three=True, theme="adversarial")
def fgsm_backward_of_inputs(loop: Loop) -> None:
    """An attack by ``backward(inputs=[x])``, which leaves parameters alone, before each step."""
    for model, step in loop.training(mlp()):
        x = loop.batch(step).requires_grad_()
        loss(model(x)).backward(inputs=[x])
        loss(model((x + 0.1 * x.grad.sign()).detach())).backward()


@kind(plain="error", plain_cause=UNFINISHED, theme="adversarial")
def fgsm_skipping(loop: Loop) -> None:
    """The same attack by ``torch.autograd.grad``, on a model that leaves blocks out."""
    for model, step in loop.training(Blocks()):
        x, skips = loop.batch(step).requires_grad_(), uneven(loop.rank, step)
        (slope,) = torch.autograd.grad(loss(model(x, skips)), x)
        loss(model((x + 0.1 * slope.sign()).detach(), skips)).backward()


@kind(plain="parts", theme="adversarial")
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


@kind(plain="error", plain_cause=UNFINISHED, theme="adversarial")
def gathered_with_gradients_and_skips(loop: Loop) -> None:
    """A collective of the user's own in the backward of an encoder that leaves blocks out."""
    for model, step in loop.training(Blocks()):
        one = _Gather.apply(model(loop.batch(step), uneven(loop.rank, step))).flatten(0, 1)
        contrast(one, one.roll(1, 0)).backward()
