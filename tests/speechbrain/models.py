"""SpeechBrain's own encoders that skip layers, tiny and random, for :mod:`tests.skipping.compared`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict

import torch
from packaging.version import Version

from tests.skipping.built import Built
from tests.speechbrain import recipes
from tests.support import serving

RATE = 0.5
LAYERS = 4
_SIZES: Dict[str, Any] = {"num_layers": LAYERS, "d_model": 16, "nhead": 2, "dropout": 0.0, "layerdrop_prob": RATE}


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, features: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = model(features)[0].pow(2).mean()
    return total


def _built(model: Any, rate: str) -> Built:
    return Built(model.train(), model.layers, loss, inputs, lambda: setattr(model, rate, 0.0))


def _encoder(module: str, **more: Any) -> Built:
    home = import_module(f"speechbrain.lobes.models.transformer.{module}")
    return _built(getattr(home, f"{module}Encoder")(**_SIZES, **more), "layerdrop_prob")


def transformer() -> Built:
    return _encoder("Transformer", d_ffn=24)


def conformer() -> Built:
    return _encoder("Conformer", d_ffn=24, kernel_size=3, attention_type="regularMHA")


def branchformer() -> Built:
    return _encoder("Branchformer", kernel_size=3, attention_type="regularMHA", csgu_linear_units=24)


def beats() -> Built:
    home = import_module("speechbrain.lobes.models.beats")
    sizes = {"encoder_layers": LAYERS, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}
    still = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    given = {"conv_pos": 4, "conv_pos_groups": 2, "encoder_attention_heads": 2, "encoder_layerdrop": RATE}
    return _built(home.TransformerEncoder(home.BEATsConfig({**given, **sizes, **still})), "layerdrop")


_SINCE = {"transformer": "0.5.14", "conformer": "1.0.2", "branchformer": "1.0.2", "beats": "1.0.3"}
_ALL: Dict[str, Callable[[], Built]] = {each.__name__: each for each in (transformer, conformer, branchformer, beats)}
MODELS = {name: make for name, make in _ALL.items() if Version(_SINCE[name]) <= recipes.release()}


def preload() -> None:
    """Import what takes long, once for all trainings; this toolkit looks at the rank when it is imported."""
    serving.fork_ranks(Path(sys.argv[1]))
    import_module("speechbrain")
