"""Small models that leave parameters unused or skip layers, in the ways that go through autograd's threads."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint


class Branches(nn.Module):
    """Each rank takes another branch in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.norm, self.calls = nn.Linear(8, 8), nn.BatchNorm1d(8), 0
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def branch(self) -> Any:
        self.calls += 1
        return self.branches[(self.calls + distributed.get_rank()) % 3]

    def forward(self, x: Any) -> Any:
        return self.branch()(self.norm(self.entry(x)))


class Checkpointed(Branches):
    def forward(self, x: Any) -> Any:
        return checkpoint(self.branch(), self.norm(self.entry(x)), use_reentrant=True)


class Two(Branches):
    """Two outputs."""

    def forward(self, x: Any) -> Any:
        hidden = self.norm(self.entry(x))
        return self.branches[0](hidden), self.branch()(hidden)


def speech(reentrant: Optional[bool] = None) -> Any:
    """A wav2vec 2.0 that skips half of its layers."""
    import transformers

    from tests.support import zoo

    config = zoo.tiny_model("wav2vec2").make_config()
    config._attn_implementation = "eager"
    model = transformers.Wav2Vec2Model(config).train()
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


MODELS: Dict[str, Callable[[], Any]] = {
    "plain": lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)),
    "branches": Branches,
    "checkpointed": Checkpointed,
    "two": Two,
    "speech": speech,
    "speech, reentrant": lambda: speech(True),
    "speech, non-reentrant": lambda: speech(False),
}


def inputs(kind: str) -> Any:
    return torch.randn(2, 400) if kind.startswith("speech") else torch.randn(4, 8)


def loss(output: Any) -> Any:
    """A loss whose gradients differ from element to element."""
    output = getattr(output, "last_hidden_state", output)
    parts = output if isinstance(output, tuple) else (output,)
    return sum((part * torch.linspace(-1, 1, part.numel(), device=part.device).view_as(part)).mean() for part in parts)
