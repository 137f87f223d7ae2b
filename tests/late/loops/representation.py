"""Contrastive learning, teachers and students."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import distributed, nn

from tests.late.loops.kinds import kind
from tests.late.loops.loop import Loop, sgd
from tests.late.loops.tiny_model import Blocks, mlp, uneven


def follow(slow: Any, fast: Any, share: float = 0.9) -> None:
    with torch.no_grad():
        for one, other in zip(slow.parameters(), fast.parameters()):
            one.mul_(share).add_(other, alpha=1 - share)


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
