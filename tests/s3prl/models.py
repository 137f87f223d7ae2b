"""Tiny upstreams of s3prl that skip layers."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict

import torch

from tests.skipping.built import Built

RATE = 0.4
LAYERS = 6
_SIZES: Dict[str, Any] = {
    "extractor_mode": "default",
    "encoder_layers": LAYERS,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 16,
    "encoder_attention_heads": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": RATE,
    "dropout_input": 0.0,
    "dropout_features": 0.0,
    "conv_feature_layers": "[(16,10,5),(16,8,4)]",
    "conv_pos": 8,
    "conv_pos_groups": 4,
}


def module(name: str) -> Any:
    return importlib.import_module(f"s3prl.upstream.{name}")


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 800, generator=torch.Generator().manual_seed(10 * step + rank))


def wavlm() -> Built:
    """By the class that s3prl's runner wraps in DDP where ``trainable`` is set, from a local checkpoint."""
    found = module("wavlm.WavLM")
    config = {**_SIZES, "num_buckets": 8, "max_distance": 16, "relative_position_embedding": True, "normalize": False}
    model = found.WavLM(found.WavLMConfig(config))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "wavlm.pt"
        torch.save({"cfg": config, "model": model.state_dict()}, checkpoint)
        expert = module("wavlm.expert").UpstreamExpert(str(checkpoint))
    # What set_layer_drop does, where the release has it.
    expert.model.encoder.layerdrop = RATE

    def loss(wrapped: Any, waves: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = wrapped(list(waves))["hidden_states"][-1].pow(2).mean()
        return total

    return Built(expert.train(), expert.model.encoder.layers, loss, inputs, lambda: None)


def _plain(model: Any) -> Built:
    def loss(wrapped: Any, waves: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = wrapped(waves, mask=False, features_only=True)["x"].pow(2).mean()
        return total

    return Built(model.train(), model.encoder.layers, loss, inputs, lambda: None)


def wav2vec2() -> Built:
    found = module("wav2vec2.wav2vec2_model")
    return _plain(found.Wav2Vec2Model(found.Wav2Vec2Config(**_SIZES, quantize_targets=False, final_dim=8)))


def hubert() -> Built:
    found = module("hubert.hubert_model")
    config, task = found.HubertConfig(50, **_SIZES, final_dim=8), found.HubertPretrainingConfig(label_rate=50)
    return _plain(found.HubertModel(config, task, [["a", "b", "c", "d"]]))


MODELS: Dict[str, Callable[[], Built]] = {"wavlm": wavlm, "wav2vec2": wav2vec2, "hubert": hubert}
