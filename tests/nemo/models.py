"""A tiny conformer encoder of NeMo that drops layers."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Sequence
from unittest import mock

import torch

from tests.skipping.built import STEPS, Built, made, seed, watched, weights

RATE = 0.4
LAYERS = 6
_SIZES: Dict[str, Any] = {
    "feat_in": 8,
    "n_layers": LAYERS,
    "d_model": 16,
    "n_heads": 2,
    "ff_expansion_factor": 1,
    "subsampling": "striding",
    "subsampling_factor": 2,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 3,
    "conv_norm_type": "layer_norm",
    "dropout": 0.0,
    "dropout_pre_encoder": 0.0,
    "dropout_emb": 0.0,
    "dropout_att": 0.0,
}


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: Any, features: torch.Tensor) -> torch.Tensor:
    lengths = torch.full((len(features),), features.size(2))
    total: torch.Tensor = model(audio_signal=features, length=lengths)[0].pow(2).mean()
    return total


def conformer(rate: float = RATE, mode: str = "uniform", **more: Any) -> Built:
    module = importlib.import_module("nemo.collections.asr.modules.conformer_encoder")
    depth = {"stochastic_depth_drop_prob": rate, "stochastic_depth_mode": mode}
    model = module.ConformerEncoder(**{**_SIZES, **depth, **more}).train()
    return Built(model, model.layers, loss, inputs, lambda: None)


def linear() -> Built:
    return conformer(0.8, "linear")


MODELS: Dict[str, Callable[[], Built]] = {"uniform": conformer, "linear": linear}


def as_shipped(built: Built, ran: Sequence[Sequence[int]], ranks: int) -> List[List[float]]:
    """The parameters after each step of NeMo's own code in one process that drops the same layers."""
    steps, found = made(built.model), []
    for step, kept in enumerate(ran):
        steps.zero_grad()
        for rank in range(ranks):
            with scripted(built, kept):
                (built.loss(built.model, built.inputs(rank, step)) / ranks).backward()
        steps.step()
        found.append(weights(built.model))
    return found


@contextmanager
def scripted(built: Built, kept: Sequence[int]) -> Iterator[None]:
    """Have NeMo's draws, one for each layer with a rate, drop the layers that are not kept."""
    encoder: Any = built.model
    numbers = iter([1.0 if layer in kept else 0.0 for layer, rate in enumerate(encoder.layer_drop_probs) if rate > 0])
    with mock.patch("torch.rand", lambda *_: torch.tensor([next(numbers)])):
        yield


def fitted(built: Built, rank: int) -> Dict[str, Any]:
    """Train by the Trainer of Lightning, which NeMo's models are trained by; returns what :func:`trained` returns."""
    import lightning.pytorch as lightning
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    ran, found = watched(built.layers), {"ran": [], "steps": []}  # type: ignore[var-annotated]

    class Task(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = built.model

        def training_step(self, features: torch.Tensor, number: int) -> torch.Tensor:
            return built.loss(self.encoder, features)

        def on_train_batch_end(self, *_: Any) -> None:
            found["ran"].append(sorted({*ran}))
            found["steps"].append(weights(built.model))
            ran.clear()

        def configure_optimizers(self) -> Any:
            return made(self)

    options: Dict[str, Any] = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": 1, "logger": False}
    options.update(plugins=[TorchElasticEnvironment()], enable_checkpointing=False, enable_progress_bar=False)
    trainer = lightning.Trainer(enable_model_summary=False, use_distributed_sampler=False, **options)
    seed(100 + rank)
    batches: Any = [built.inputs(rank, step) for step in range(STEPS)]
    trainer.fit(Task(), torch.utils.data.DataLoader(batches, batch_size=None))
    return found


def preload() -> None:
    """Import what takes long, once for all trainings."""
    importlib.import_module("nemo.collections.asr.modules.conformer_encoder")
