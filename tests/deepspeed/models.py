"""The models that are trained in DeepSpeed's engine: of transformers, FunASR, WeNet, and one of no toolkit."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union
from unittest import mock

import torch
from torch import nn

from tests.deepspeed import own
from tests.sharded import training, wraps
from tests.support import zoo


class OfTransformers:
    """An entry of the zoo.

    Args:
        name: of the entry.
    """

    def __init__(self, name: str) -> None:
        self.entry = zoo.tiny_model(name)
        self.batch, self.loss = self.entry.batch, self.entry.loss

    def build(self, rate: float) -> nn.Module:
        return self.entry.build(rate=rate, seed=3)

    def reference(self, rate: float) -> nn.Module:
        """A model that skips nothing by itself."""
        return self.build(0.0)

    def observed(self, layer: nn.Module) -> nn.Module:
        """What is called only where a layer is not left out."""
        return layer

    def layers(self, model: nn.Module) -> List[Tuple[str, nn.Module]]:
        """(name, module) of each layer that may be skipped."""
        return wraps.layers_of(model)

    def only(self, model: nn.Module, ran: List[str]) -> Any:
        """Within it the model has these layers and no others."""
        return training.only(model, ran)


class Encoder:
    """An encoder of a speech toolkit: layers in ``encoders``, each of which is scaled up for the times it is left out.

    Args:
        make: ``make(rate)`` makes one.
        names: of the arguments of its forward: frames and lengths.
    """

    def __init__(self, make: Callable[[float], nn.Module], names: Tuple[str, str]) -> None:
        self.make, self.names = make, names

    def build(self, rate: float) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return self.make(rate).train()

    def reference(self, rate: float) -> nn.Module:
        """The same one: the rate scales its layers."""
        return self.build(rate)

    def batch(self, seed: int) -> Dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return dict(zip(self.names, (torch.randn(2, 6, 8, generator=generator), torch.tensor([6, 6]))))

    def loss(self, output: Any) -> torch.Tensor:
        return (output[0] * torch.linspace(0.5, 1.5, output[0].numel()).view_as(output[0])).sum()

    def observed(self, layer: nn.Module) -> nn.Module:
        """What is called only where a layer is not left out: FunASR's layers leave themselves out."""
        return getattr(layer, "self_attn", layer)

    def layers(self, model: nn.Module) -> List[Tuple[str, nn.Module]]:
        return [(f"encoders.{index}", layer) for index, layer in enumerate(nn.Module.children(model.encoders))]

    @contextlib.contextmanager
    def only(self, model: Any, ran: List[str]) -> Iterator[None]:
        """Within it the model has these layers and no others, and none draws a number that would leave it out."""
        whole = model.encoders
        kept = [layer for name, layer in self.layers(model) if name in ran]
        # What drops some of its items itself is left out with its own iteration.
        plain = issubclass(type(whole), nn.ModuleList)
        model.encoders = nn.ModuleList(kept) if plain else type(whole)(*kept)
        try:
            with mock.patch.object(torch, "rand", lambda *sizes, **others: torch.ones(*sizes)):
                yield
        finally:
            model.encoders = whole


_NO_DROPOUT = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0, "attention_dropout_rate": 0.0}
_SIZES = {"output_size": 8, "attention_heads": 2, "linear_units": 16, "num_blocks": 4, "input_layer": "linear"}


def _of_funasr(rate: float) -> Any:
    module = importlib.import_module("funasr.models.conformer.encoder")
    return module.ConformerEncoder(8, **_SIZES, **_NO_DROPOUT, use_cnn_module=False, stochastic_depth_rate=rate)


def _of_wenet(rate: float) -> Any:
    import torch.nn.modules.conv as names

    # What WeNet imports from there is gone from there in torch 2.13, also for a run without ddpfix.
    vars(names).update({"Union": Union, "Optional": Optional, "Tensor": torch.Tensor})
    module = importlib.import_module("wenet.models.branchformer.encoder")
    sizes = {name: value for name, value in _SIZES.items() if name != "linear_units"}
    return module.BranchformerEncoder(
        8, **sizes, **_NO_DROPOUT, cgmlp_linear_units=16, cgmlp_conv_kernel=3, stochastic_depth_rate=rate
    )


_ENCODERS = {
    "own": lambda: Encoder(own.OwnEncoder, ("frames", "lengths")),
    "funasr": lambda: Encoder(_of_funasr, ("xs_pad", "ilens")),
    "wenet": lambda: Encoder(_of_wenet, ("xs", "xs_lens")),
}


def named(name: str) -> Any:
    """The model of a name: ``own``, ``funasr``, ``wenet``, or an entry of the zoo."""
    return _ENCODERS[name]() if name in _ENCODERS else OfTransformers(name)
