"""fastNLP's own BART and CPT, and code of a user's own, that skip layers; for :mod:`tests.skipping.compared`."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict

import torch
from torch import nn

from tests.skipping.built import Built
from tests.support import serving

RATE = 0.5
LAYERS = 4
_HOME = "fastNLP.transformers.torch.models"
_SIZES: Dict[str, Any] = {"vocab_size": 32, "d_model": 8, "max_position_embeddings": 16, "dropout": 0.0}
for _side in ("encoder", "decoder"):
    _SIZES.update({f"{_side}_layers": LAYERS, f"{_side}_attention_heads": 2, f"{_side}_ffn_dim": 8})


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randint(3, 23, (2, 4), generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, words: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = model(words).pow(2).mean()
    return total


class Spoken(nn.Module):
    """One of fastNLP's models; what it gives beside its last states would be outputs outside of the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=words, decoder_input_ids=words, return_dict=True)
        states: torch.Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
        return states


def _built(model: nn.Module, stack: Any) -> Built:
    return Built(model.train(), stack.layers, loss, inputs, lambda: setattr(stack, "layerdrop", 0.0))


def _bart(side: str) -> Any:
    home = import_module(f"{_HOME}.bart")
    return home.BartModel(home.BartConfig(**_SIZES, **{f"{side}_layerdrop": RATE}))


def encoder() -> Built:
    model = _bart("encoder")
    return _built(Spoken(model), model.encoder)


def decoder() -> Built:
    model = _bart("decoder")
    return _built(Spoken(model), model.decoder)


def cpt() -> Built:
    home = import_module(f"{_HOME}.cpt")
    sizes = {"num_decoder_layers": LAYERS, "num_hidden_layers": 2, "num_attention_heads": 2, "decoder_layerdrop": RATE}
    config = home.CPTConfig(**_SIZES, **sizes, hidden_size=8, intermediate_size=8)
    model = home.CPTForConditionalGeneration(config)
    return _built(Spoken(model), model.model.decoder)


class Own(nn.Module):
    """Skips its layers by code of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
        self.layerdrop = RATE

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(words)
        for layer in self.layers:
            if self.training and random.random() < self.layerdrop:
                continue
            x = layer(x)
        return x


def own() -> Built:
    model = Own()
    return _built(model, model)


MODELS: Dict[str, Callable[[], Built]] = {each.__name__: each for each in (encoder, decoder, cpt, own)}


def preload() -> None:
    """Import what takes long, once for all trainings; this toolkit looks at the rank when it is imported."""
    serving.fork_ranks(Path(sys.argv[1]))
    for name in ("bart", "cpt"):
        import_module(f"{_HOME}.{name}")
