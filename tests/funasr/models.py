"""FunASR's encoders that skip layers, tiny and random, for :mod:`tests.skipping.compared`."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Tuple

import torch

from tests.funasr import recipes
from tests.skipping.built import Built

RATE = 0.5
LAYERS = 4
_ATTENTION = {"attn_branch_drop_rate": RATE, "merge_method": "learned_ave"}
# By name the class and what it is configured with; the first three skip whole layers only.
ENCODERS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "conformer": ("ConformerEncoder", {"stochastic_depth_rate": RATE}),
    "branchformer": ("BranchformerEncoder", {"stochastic_depth_rate": RATE}),
    "e_branchformer": ("EBranchformerEncoder", {"layer_drop_rate": RATE}),
    "attention": ("BranchformerEncoder", _ATTENTION),
    "both": ("BranchformerEncoder", {**_ATTENTION, "stochastic_depth_rate": 0.25}),
}


def encoder(name: str, **more: Any) -> Any:
    """An encoder in training mode; the generators are seeded."""
    preload()
    from funasr.register import tables

    kind, conf = ENCODERS[name]
    torch.manual_seed(0)
    return tables.encoder_classes[kind](input_size=80, **{**recipes._ENCODERS[kind], **conf, **more}).train()


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(3, 60, 80, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, speech: torch.Tensor) -> torch.Tensor:
    out = model(speech, torch.tensor([60, 51, 44]))[0]
    total: torch.Tensor = (out[0] if isinstance(out, tuple) else out).pow(2).mean()
    return total


def built(name: str) -> Built:
    made = encoder(name)
    return Built(made, made.encoders, loss, inputs, lambda: None)


MODELS: Dict[str, Callable[[], Built]] = {name: partial(built, name) for name in list(ENCODERS)[:3]}


def preload() -> None:
    """Import what takes long, once for all trainings."""
    import funasr  # noqa: F401
