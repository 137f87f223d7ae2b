"""Small encoders for recipes that need none of transformers: waveform in, frames of 16 numbers out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Samples a frame, as in the self-supervised encoders.
HOP = 320


class Encoder(nn.Module):
    """Two layers over frames; the same parameters are used in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(HOP, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, wavs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(frames(wavs)))))


class Layered(nn.Module):
    """One of SpeechBrain's own encoders, which may skip layers, over the same frames."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.first = nn.Linear(HOP, 16)
        self.encoder = encoder

    def forward(self, wavs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.encoder(torch.tanh(self.first(frames(wavs))))[0]
        return result


def frames(wavs: torch.Tensor) -> torch.Tensor:
    """(batch, samples) to (batch, frames, HOP)."""
    count = wavs.shape[1] // HOP
    return wavs[:, : count * HOP].reshape(wavs.shape[0], count, HOP)


def beats(layerdrop: float) -> Any:
    """The Transformer of SpeechBrain's BEATs, small."""
    from speechbrain.lobes.models import beats

    sizes = {"encoder_layers": 4, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_attention_heads": 2}
    still = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    given = {"conv_pos": 4, "conv_pos_groups": 2, "encoder_layerdrop": layerdrop, **sizes, **still}
    return beats.TransformerEncoder(beats.BEATsConfig(given))
