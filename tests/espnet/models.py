"""Tiny encoders of ESPnet that skip layers."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Dict

import torch

from tests.skipping.built import Built

RATE = 0.5
LAYERS = 6
_SIZES: Dict[str, Any] = {
    "input_size": 8,
    "output_size": 16,
    "attention_heads": 2,
    "num_blocks": LAYERS,
    "dropout_rate": 0.0,
    "positional_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "input_layer": "linear",
}
_FEED_FORWARD = {"linear_units": 16}
_GATED = {"cgmlp_linear_units": 16, "cgmlp_conv_kernel": 3}


def encoder(kind: str, name: str, **more: Any) -> Any:
    """An encoder of a module, in training mode."""
    module = importlib.import_module(f"espnet2.asr.encoder.{kind}_encoder")
    return getattr(module, name)(**_SIZES, **more).train()


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, features: torch.Tensor) -> torch.Tensor:
    lengths = torch.full((len(features),), features.size(1))
    total: torch.Tensor = model(features, lengths)[0].pow(2).mean()
    return total


def _built(model: Any) -> Built:
    return Built(model, model.encoders, loss, inputs, lambda: None)


def conformer() -> Built:
    """Each layer draws for itself, and scales what it computes."""
    rate = {"stochastic_depth_rate": RATE, "cnn_module_kernel": 3}
    return _built(encoder("conformer", "ConformerEncoder", **_FEED_FORWARD, **rate))


def branchformer() -> Built:
    return _built(encoder("branchformer", "BranchformerEncoder", **_GATED, stochastic_depth_rate=RATE))


def e_branchformer() -> Built:
    more = {"merge_conv_kernel": 3, "layer_drop_rate": RATE}
    return _built(encoder("e_branchformer", "EBranchformerEncoder", **_GATED, **more))


def transformer() -> Built:
    """Its list of layers draws, from 202301 on; from 202310 on its encoder goes through the layers itself."""
    return _built(encoder("transformer", "TransformerEncoder", **_FEED_FORWARD, layer_drop_rate=RATE))


MODELS: Dict[str, Callable[[], Built]] = {
    "conformer": conformer,
    "branchformer": branchformer,
    "e_branchformer": e_branchformer,
    "transformer": transformer,
}


def skips(name: str) -> bool:
    """Whether an encoder of the installed release skips layers at the rate that it is given."""
    if name != "transformer":
        return True
    module = importlib.import_module("espnet2.asr.encoder.transformer_encoder")
    encoder = module.TransformerEncoder
    return "layer_drop_rate" in inspect.signature(encoder).parameters and "self.encoders(" in inspect.getsource(
        encoder.forward
    )


def preload() -> None:
    """Import what takes long, once for all trainings."""
    for kind in ("conformer", "branchformer", "e_branchformer", "transformer"):
        importlib.import_module(f"espnet2.asr.encoder.{kind}_encoder")
