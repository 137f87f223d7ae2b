"""Contrastive learning, teachers and students."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import distributed, nn

from tests.late.loops.kinds import kind
from tests.late.loops.loop import SIZE, Loop, sgd
from tests.late.loops.tiny_model import Apart, Blocks, loss, mlp, uneven


def follow(slow: Any, fast: Any, share: float = 0.9) -> None:
    with torch.no_grad():
        for one, other in zip(slow.parameters(), fast.parameters()):
            one.mul_(share).add_(other, alpha=1 - share)


def contrast(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(one @ other.t(), torch.arange(len(one)))


@kind(three=True)
def simclr(loop: Loop) -> None:
    """Two views through the wrapped encoder, one loss."""
    for model, step in loop.training(mlp()):
        contrast(model(loop.batch(step)), model(loop.batch(step) + 0.1 * loop.batch(step, 1))).backward()


@kind(plain="right")
def simclr_gathered(loop: Loop) -> None:
    """Negatives of all ranks, gathered without gradients between forward and backward."""
    for model, step in loop.training(mlp()):
        one, other = model(loop.batch(step)), model(loop.batch(step, 1))
        everyone = [torch.zeros_like(other) for _ in range(loop.size)]
        distributed.all_gather(everyone, other.detach())
        everyone[loop.rank] = other
        (contrast(one, other) + (one @ torch.cat(everyone).t()).logsumexp(1).mean()).backward()


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


@kind(three=True)
def clip_gathered_with_gradients(loop: Loop) -> None:
    """Two towers whose features are gathered by a function that communicates in backward, too."""
    images, texts = loop.wrap(mlp()), loop.wrap(mlp())
    for step in loop.trained(images, texts):
        one = _Gather.apply(images(loop.batch(step))).flatten(0, 1)
        other = _Gather.apply(texts(loop.batch(step, 1))).flatten(0, 1)
        (contrast(one, other) + contrast(other, one)).backward()


@kind(plain="error", plain_cause="finished reduction")
def gathered_with_gradients_and_skips(loop: Loop) -> None:
    """A collective of the user's own in the backward of an encoder that leaves blocks out."""
    for model, step in loop.training(Blocks()):
        one = _Gather.apply(model(loop.batch(step), uneven(loop.rank, step))).flatten(0, 1)
        contrast(one, one.roll(1, 0)).backward()


@kind(three=True)
def byol(loop: Loop) -> None:
    """A predictor, and a target that follows as a moving average."""
    online = loop.wrap(nn.Sequential(mlp(), mlp()))
    target = copy.deepcopy(online.module[0]).requires_grad_(False)
    loop.track(target)
    optimizer = sgd(online)
    for step in loop.steps():
        x, y = loop.batch(step), loop.batch(step, 1)
        with torch.no_grad():
            wanted = target(x), target(y)
        optimizer.zero_grad()
        ((online(y) - wanted[0]).pow(2).mean() + (online(x) - wanted[1]).pow(2).mean()).backward()
        loop.update(optimizer, online)
        follow(target, online.module[0])


@kind(three=True)
def dino(loop: Loop) -> None:
    """Gradients of the last layer are cancelled in the first steps: ``p.grad = None``."""
    student = loop.wrap(Blocks())
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    for step in loop.steps():
        optimizer.zero_grad()
        loss(student(loop.batch(step))).backward()
        loop.sync(student)
        if step < 2:
            for p in student.module.blocks[3].parameters():
                p.grad = None
        optimizer.step()


@kind(plain="error", plain_cause="finished reduction")
def dino_with_stochastic_depth(loop: Loop) -> None:
    """The same with blocks left out, each rank its own."""
    student = loop.wrap(Blocks())
    optimizer = sgd(student)
    for step in loop.steps():
        optimizer.zero_grad()
        loss(student(loop.batch(step), uneven(loop.rank, step))).backward()
        loop.sync(student)
        if step < 2:
            for p in student.module.blocks[3].parameters():
                p.grad = None
        optimizer.step()


@kind()
def moco(loop: Loop) -> None:
    """Keys come from a slow copy, and all ranks' keys go into a queue between backward and step."""
    model = loop.wrap(mlp())
    slow = copy.deepcopy(model.module).requires_grad_(False)
    optimizer, queue = sgd(model, momentum=0.9), loop.same(99)
    for step in loop.steps():
        with torch.no_grad():
            follow(slow, model.module)
            keys = slow(loop.batch(step, 1))
        optimizer.zero_grad()
        contrast(model(loop.batch(step)), torch.cat([keys, queue])).backward()
        everyone = [torch.zeros_like(keys) for _ in range(loop.size)]
        distributed.all_gather(everyone, keys)
        queue = torch.cat([*everyone, queue])[:8]
        loop.update(optimizer, model)


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = mlp()

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (self.tower(one) - self.tower(other)).pow(2).sum(1)


@kind(three=True)
def siamese(loop: Loop) -> None:
    """One tower is called twice in a forward."""
    for model, step in loop.training(_Siamese()):
        loss(model(loop.batch(step), loop.batch(step, 1))).backward()


@kind()
def mean_teacher(loop: Loop) -> None:
    """A slow copy of the *wrapped* model is the teacher; it is called through its own DDP without gradients."""
    student = loop.wrap(mlp())
    teacher = copy.deepcopy(student)
    loop.track(teacher)
    for p in teacher.parameters():
        p.requires_grad_(False)
    optimizer = sgd(student)
    for step in loop.steps():
        with torch.no_grad():
            wanted = teacher(loop.batch(step))
        optimizer.zero_grad()
        (student(loop.batch(step) + 0.1) - wanted + 0.3).pow(2).mean().backward()
        loop.update(optimizer, student)
        follow(teacher, student)


@kind(three=True)
def r_drop(loop: Loop) -> None:
    """The same batch twice through dropout, and a loss on what differs."""
    model = loop.wrap(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.5), nn.Linear(SIZE, SIZE)))
    torch.manual_seed(100 + loop.rank)
    for step in loop.trained(model):
        one, other = model(loop.batch(step)), model(loop.batch(step))
        (loss(one) + (one - other).pow(2).mean()).backward()


@kind()
def self_distillation(loop: Loop) -> None:
    """Deep supervision: the last part teaches the others through a detached output."""
    for model, step in loop.training(Apart(3)):
        one, two, last = model(loop.batch(step))
        (loss(last) + (one - last.detach()).pow(2).mean() + (two - last.detach()).pow(2).mean()).backward()


@kind()
def gradient_cache(loop: Loop) -> None:
    """GradCache: features without graph, the loss's slope at them, then chunk by chunk a backward with that slope."""
    for model, step in loop.training(mlp()):
        chunks = [loop.batch(step, salt) for salt in range(3)]
        with torch.no_grad():
            features = torch.cat([model(chunk) for chunk in chunks]).requires_grad_()
        contrast(features, features.roll(1, 0)).backward()
        slopes = features.grad.chunk(3)
        for number, (chunk, slope) in enumerate(zip(chunks, slopes)):
            if number < 2:
                with model.no_sync():
                    model(chunk).backward(slope)
            else:
                model(chunk).backward(slope)


@kind(plain="error", plain_cause="finished reduction", three=True)
def data2vec_masked_student(loop: Loop) -> None:
    """A student that leaves blocks out is wrapped, its teacher never does and follows the student's parameters."""
    student = loop.wrap(Blocks())
    teacher = copy.deepcopy(student.module)
    optimizer = sgd(student, momentum=0.9)
    for step in loop.steps():
        with torch.no_grad():
            wanted = teacher(loop.batch(step))
        optimizer.zero_grad()
        output = student(loop.batch(step), (1,) if (step + loop.rank) % 2 else (2,))
        (output - wanted + 0.3).pow(2).mean().backward()
        loop.update(optimizer, student)
        follow(teacher, student.module)
