"""Tiny networks of the tree on the path, real or stand-in: with stochastic depth, or with a part that is not used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Dict, List, Optional

import torch

SIZE = 8
BLOCKS = 4


def home() -> str:
    """Where the tree has its models."""
    return "wenet.models" if find_spec("wenet.models") is not None else "wenet"


def is_real() -> bool:
    return find_spec(f"{home()}.transformer.ctc") is not None


def _of(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{home()}.{module}"), attribute)


def layer_class(encoder: str) -> Any:
    prefix = {"branchformer": "", "e_branchformer": "E"}[encoder]
    return _of(f"{encoder}.encoder_layer:{prefix}BranchformerEncoderLayer")


def list_class() -> Optional[Any]:
    """The list that leaves out layers; None before 3.1.0."""
    name = f"{home()}.branchformer.encoder"
    return vars(import_module(name)).get("LayerDropModuleList") if find_spec(name) is not None else None


class Net(torch.nn.Module):
    """An encoder, and a sum of what comes out; ``ran`` gets (layer, part) of what runs."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.ran: List[List[Any]] = []
        for index, layer in enumerate(encoder.encoders._modules.values()):  # type: ignore[union-attr]
            for part in ("cgmlp", "pooling_proj1"):
                if isinstance(getattr(layer, part, None), torch.nn.Module):
                    getattr(layer, part).register_forward_hook(self._noting(index, part))

    def _noting(self, index: int, part: str) -> Any:
        return lambda *_: self.ran.append([index, part])

    def forward(self, feats: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        out = self.encoder(feats, lengths)[0]
        return (out * torch.linspace(-1, 1, out.shape[-1])).sum() / out.shape[1]


class StandIn(torch.nn.Module):
    """What an encoder of WeNet's does around its layers: draws for a chunk mask, whose number depends on the length."""

    def __init__(self, layers: List[torch.nn.Module], rate: float) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(SIZE, SIZE)
        listed = list_class()
        self.encoders = torch.nn.ModuleList(layers) if listed is None else listed([rate] * len(layers), layers)

    def forward(self, feats: torch.Tensor, lengths: torch.Tensor) -> Any:
        frames = feats.shape[1]
        if int(torch.randint(1, frames, (1,)).item()) <= frames // 2:
            torch.randint(0, frames // 8, (1,))
        out = self.embed(feats)
        for layer in self.encoders:
            out = layer(out)
        return out, lengths


def deep(encoder: str, rate: float, branch: Optional[float] = None) -> Net:
    """A net whose layers are skipped at ``rate``, and their attention branches at ``branch`` (None: it has none)."""
    torch.manual_seed(0)
    rates = {"stochastic_depth_rate": rate, **({} if branch is None else {"attn_branch_drop_rate": branch})}
    if not is_real():
        stand_in = Net(StandIn([layer_class(encoder)(SIZE, **rates) for _ in range(BLOCKS)], rate))
        stand_in.train()
        return stand_in
    conf: Dict[str, Any] = {"output_size": SIZE, "attention_heads": 2, "num_blocks": BLOCKS, "cgmlp_linear_units": 8}
    conf.update(dict.fromkeys(("dropout_rate", "positional_dropout_rate", "attention_dropout_rate"), 0.0))
    conf.update(cgmlp_conv_kernel=3, use_dynamic_chunk=True, use_dynamic_left_chunk=True, causal=True)
    conf.update({} if branch is None else {"merge_method": "learned_ave"})
    kind = {"branchformer": "Branchformer", "e_branchformer": "EBranchformer"}[encoder]
    net = Net(_of(f"{encoder}.encoder:{kind}Encoder")(20, **conf, **rates))
    net.train()
    return net


def features(rank: int, step: int) -> Any:
    """(features, lengths) of one batch; rank 1's are longer."""
    frames = 40 + 8 * step + 48 * rank
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(2, frames, 20 if is_real() else SIZE, generator=generator), torch.tensor([frames, frames - 4])


class Idle(torch.nn.Module):
    """A stand-in for a model of which the loss leaves out a part."""

    def __init__(self, all_used: bool) -> None:
        super().__init__()
        self.encoder = _of("transformer.encoder:Encoder")(SIZE)
        self.decoder = torch.nn.Linear(SIZE, SIZE)
        self.all_used = all_used

    def forward(self, batch: Dict[str, Any], device: Any) -> Dict[str, Any]:
        out = self.encoder(batch["feats"].requires_grad_())
        return {"loss": (self.decoder(out) if self.all_used else out).sin().mean()}


def idle(all_used: bool) -> torch.nn.Module:
    """A model with gradient checkpointing; with CTC alone (not ``all_used``), its decoder is left out."""
    torch.manual_seed(0)
    if not is_real():
        return Idle(all_used).train()
    small = {
        "attention_heads": 2,
        "linear_units": 8,
        "num_blocks": 2,
        "dropout_rate": 0.0,
        "gradient_checkpointing": True,
    }
    encoder = _of("transformer.encoder:ConformerEncoder")(
        20,
        output_size=SIZE,
        cnn_module_kernel=3,
        positional_dropout_rate=0.0,
        use_cnn_module=True,
        causal=True,
        **small,
    )
    decoder = _of("transformer.decoder:TransformerDecoder")(11, SIZE, positional_dropout_rate=0.0, **small)
    ctc = _of("transformer.ctc:CTC")(11, SIZE)
    weight = 0.5 if all_used else 1.0
    return _of("transformer.asr_model:ASRModel")(11, encoder, decoder, ctc, ctc_weight=weight).train()  # type: ignore[no-any-return]


def batch(rank: int, step: int) -> Dict[str, Any]:
    feats, lengths = features(rank, step)
    target = torch.tensor([[1, 2, 3], [4, 5, 6]])
    lengths_of = torch.tensor([3, 3])
    whisper = {"langs": ["zh", "zh"], "tasks": ["transcribe", "transcribe"]}
    return {"feats": feats, "feats_lengths": lengths, "target": target, "target_lengths": lengths_of, **whisper}
