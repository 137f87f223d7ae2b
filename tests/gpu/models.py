"""The models that are trained: tiny ones for exactness, and ones of the shape of WavLM-base and BART-base."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Optional

import torch
from torch import nn

Batch = Dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A model, its batches, and how DDP is to cut its gradients into buckets."""

    make: Callable[[float], nn.Module]  # for a rate of LayerDrop, on the device that torch is told to use
    batch: Callable[[torch.Generator], Batch]  # on the CPU
    cap: float = 25.0  # DDP's ``bucket_cap_mb``


class Branches(nn.Module):  # type: ignore[misc, unused-ignore]
    """Runs one of three branches, chosen by the batch, so that ranks differ; what is unused is known in advance."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.head = nn.Linear(16, 48), nn.Linear(48, 4)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(3))

    def forward(self, values: torch.Tensor, branch: int) -> torch.Tensor:
        return self.head(self.branches[branch](self.entry(values)))


def _branches_batch(generator: torch.Generator) -> Batch:
    branch = int(torch.randint(0, 3, (), generator=generator))
    return {"values": torch.randn(4, 16, generator=generator), "branch": branch}


def _tiny_wav2vec2(rate: float) -> nn.Module:
    import transformers

    from tests.support import zoo

    config = zoo.tiny_model("wav2vec2").make_config(rate)
    config._attn_implementation = "eager"
    return transformers.Wav2Vec2Model(config)


def _bart(rate: float, last: float, width: int, layers: int, heads: int, attention: str = "", **more: Any) -> Any:
    import transformers

    sides = ("encoder", "decoder")
    values = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    sizes: Dict[str, Any] = {f"{side}_{name}": value for side in sides for name, value in values.items()}
    config = transformers.BartConfig(
        d_model=width, encoder_layerdrop=rate, decoder_layerdrop=last, use_cache=False, **sizes, **more
    )
    if attention:
        config._attn_implementation = attention
    return transformers.BartForConditionalGeneration(config)


def _wavlm(rate: float, **more: Any) -> nn.Module:
    import transformers

    return transformers.WavLMModel(transformers.WavLMConfig(layerdrop=rate, mask_time_prob=0.0, **more))


_TINY: Dict[str, Any] = {"vocab_size": 50, "max_position_embeddings": 16, "dropout": 0.0}
# The shape of WavLM-large.
_LARGE: Dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}
# What stands for WavLM-base over gloo.
_NARROW: Dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "num_hidden_layers": 6,
    "conv_dim": (32,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def _audio(size: int, samples: int) -> Callable[[torch.Generator], Batch]:
    return lambda generator: {"input_values": torch.randn(size, samples, generator=generator)}


def _text(size: int, length: int, words: int) -> Callable[[torch.Generator], Batch]:
    def batch(generator: torch.Generator) -> Batch:
        tokens = torch.randint(4, words, (size, length), generator=generator)
        return {"input_ids": tokens, "labels": tokens.clone()}

    return batch


KINDS: Dict[str, Kind] = {
    "branches": Kind(lambda rate: Branches(), _branches_batch, 0.01),
    "tiny wav2vec2": Kind(_tiny_wav2vec2, _audio(2, 400), 0.01),
    "tiny BART": Kind(lambda rate: _bart(rate, 0.0, 32, 2, 2, "eager", **_TINY), _text(2, 12, 50), 0.01),
    "WavLM-base": Kind(_wavlm, _audio(4, 64000)),
    # A minute of audio.
    "WavLM-large": Kind(partial(_wavlm, **_LARGE), _audio(4, 240000)),
    "BART-base": Kind(lambda rate: _bart(rate, rate, 768, 6, 12), _text(8, 256, 50000)),
    "narrow WavLM": Kind(partial(_wavlm, **_NARROW), _audio(1, 4000), 0.2),
    "narrow BART": Kind(lambda rate: _bart(rate, rate, 96, 3, 4, vocab_size=500), _text(2, 32, 500), 0.2),
}


def built(name: str, rate: float, device: torch.device) -> nn.Module:
    """The same weights whenever it is asked for; the generators of torch are seeded."""
    torch.manual_seed(5)
    with torch.device(device):
        return KINDS[name].make(rate).to(device).train()


def batch(name: str, number: int, rank: int, device: torch.device) -> Batch:
    drawn = KINDS[name].batch(torch.Generator().manual_seed(1000 * rank + number))
    return {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in drawn.items()}


def loss(output: Any) -> torch.Tensor:
    """Of a model without a head, a weighted sum: what comes out of a layer norm has always the same mean square."""
    if isinstance(output, torch.Tensor):
        return output.square().mean()
    found: Optional[torch.Tensor] = output.get("loss")
    if found is not None:
        return found
    state = output.last_hidden_state.float()
    weights = torch.linspace(-1.0, 1.0, state.numel(), device=state.device).view_as(state)
    return (state * weights).mean()
