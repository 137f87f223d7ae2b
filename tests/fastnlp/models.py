"""The models that are trained: parameters that no step uses, and fastNLP's own BART and CPT."""

from __future__ import annotations

import os
import random
from typing import Any, Dict, List, Tuple

import torch
from torch import nn

SAMPLES = 16


class Spare(nn.Module):
    """Two layers, of which only the first one runs."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.used = nn.Linear(4, 1)
        for number in range(layers - 1):
            self.add_module(f"spare{number}", nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"loss": self.used(x).pow(2).mean()}

    def evaluate_step(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"pred": self.used(x)}


class Whole(Spare):
    """Every parameter is used in every step."""

    def __init__(self) -> None:
        super().__init__(1)


class Batched(Spare):
    """Takes the batch as it is."""

    def forward(self, batch: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        return super().forward(batch["x"])


class Checkpointed(Whole):
    """A stack that is computed again in backward, by the kind of checkpointing that is torch's default."""

    keywords: Dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        from torch.utils.checkpoint import checkpoint

        out = checkpoint(self.used, x.requires_grad_(), **self.keywords)
        return {"loss": out.pow(2).mean()}


class Reentrant(Checkpointed):
    keywords = {"use_reentrant": True}


class Spoken(nn.Module):
    """One of fastNLP's models that skip layers, with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        words = (x.abs() * 10).long() % 20 + 3
        output = self.model(input_ids=words, decoder_input_ids=words, return_dict=True)
        states = output.logits if hasattr(output, "logits") else output.last_hidden_state
        return {"loss": states.pow(2).mean()}


class Own(nn.Module):
    """Skips its layers by code of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
        self.layerdrop = 0.5

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        for layer in self.layers:
            if self.training and random.random() < self.layerdrop:
                continue
            x = layer(x)
        return {"loss": x.pow(2).mean() + 0 * sum(p.sum() for p in self.layers[0].parameters())}


class Holder(nn.Module):
    """Keeps such a model as a part, so that its layers have names like those of the others."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        output: Dict[str, torch.Tensor] = self.model(x)
        return output


SIZES = {
    "vocab_size": 32,
    "d_model": 8,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 16,
    "dropout": 0.0,
    "encoder_layerdrop": 0.5,
    "decoder_layerdrop": 0.5,
}


def bart(checkpointing: bool = False) -> nn.Module:
    from fastNLP.transformers.torch.models.bart import BartConfig, BartModel

    model = BartModel(BartConfig(**SIZES))
    model.encoder.gradient_checkpointing = checkpointing
    return Spoken(model)


def cpt() -> nn.Module:
    from fastNLP.transformers.torch.models.cpt import CPTConfig, CPTForConditionalGeneration

    sizes = {**SIZES, "num_decoder_layers": 4, "num_hidden_layers": 4, "num_attention_heads": 2}
    return Spoken(CPTForConditionalGeneration(CPTConfig(**sizes, hidden_size=8, intermediate_size=8)))


MODELS: Dict[str, Any] = {
    "spare": Spare,
    "whole": Whole,
    "batched": Batched,
    "checkpointed": Checkpointed,
    "reentrant": Reentrant,
    "bart": bart,
    "bart checkpointed": lambda: bart(True),
    "cpt": cpt,
    "own": lambda: Holder(Own()),
}


def make(name: str) -> nn.Module:
    """A model with the same weights on every rank, and the same every time."""
    torch.manual_seed(7)
    return MODELS[name]()


def samples() -> List[Dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(4, generator=generator)} for _ in range(SAMPLES)]


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def skipping(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    """(name, layer) of every layer of the stacks that skip layers."""
    return [
        (name, part) for name, part in model.named_modules() if ".layers." in name and name.split(".")[-1].isdigit()
    ]
