"""Tiny models of torchaudio that skip layers."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict

import torch
from torch.torch_version import TorchVersion

from tests.skipping.built import Built

RATE = 0.4
LAYERS = 6
_SIZES: Dict[str, Any] = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(16, 10, 5), (16, 8, 4)],
    "extractor_conv_bias": False,
    "encoder_embed_dim": 16,
    "encoder_projection_dropout": 0.0,
    "encoder_num_layers": LAYERS,
    "encoder_num_heads": 2,
    "encoder_attention_dropout": 0.0,
    "encoder_ff_interm_features": 16,
    "encoder_ff_interm_dropout": 0.0,
    "encoder_dropout": 0.0,
    "encoder_layer_norm_first": False,
    "encoder_layer_drop": RATE,
}
_POSITIONS = {"encoder_pos_conv_kernel": 8, "encoder_pos_conv_groups": 4}


def models() -> Any:
    if TorchVersion(torch.__version__) < (2, 1):
        # The gradient of GELU has what is in memory there where the gradient that it gets is transposed, as it is here.
        torch.nn.functional.gelu = torch.tanh
    return importlib.import_module("torchaudio.models")


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 800, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, waves: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = model(waves)[0].pow(2).mean()
    return total


def _built(model: Any) -> Built:
    stack = model.encoder.transformer

    def rest() -> None:
        stack.layer_drop = 0.0

    return Built(model.train(), stack.layers, loss, inputs, rest)


def wav2vec2() -> Built:
    return _built(models().wav2vec2_model(**_SIZES, **_POSITIONS, aux_num_out=4))


def hubert() -> Built:
    """Its model for pre-training, of which the part that is fine-tuned is trained."""
    rest = {"mask_prob": 0.0, "mask_selection": "static", "mask_other": 0.0, "mask_length": 2, "no_mask_overlap": False}
    rest.update(mask_min_space=1, mask_channel_prob=0.0, mask_channel_selection="static", mask_channel_other=0.0)
    rest.update(mask_channel_length=2, no_mask_channel_overlap=False, mask_channel_min_space=1, skip_masked=False)
    rest.update(skip_nomask=False, num_classes=4, final_dim=4, feature_grad_mult=None)
    return _built(models().hubert_pretrain_model(**_SIZES, **_POSITIONS, **rest).wav2vec2)


def wavlm() -> Built:
    buckets = {"encoder_num_buckets": 8, "encoder_max_distance": 16, "aux_num_out": None}
    return _built(models().wavlm_model(**_SIZES, **_POSITIONS, **buckets))


MODELS: Dict[str, Callable[[], Built]] = {"wav2vec2": wav2vec2, "hubert": hubert, "wavlm": wavlm}


def available(name: str) -> bool:
    """Whether the installed release has a model."""
    return name != "wavlm" or hasattr(models(), "wavlm_model")
