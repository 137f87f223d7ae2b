"""Trains a model with LayerDrop and records what is compared with a run in another mode."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from typing import Any, Dict, List

import torch
import transformers
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction, checkpoint
from transformers.modeling_outputs import BaseModelOutput

OPTIMIZERS: Dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.002, weight_decay=0.1),
}


def wav2vec2(rate: float) -> Any:
    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8),
        # Torch 2.0 and 2.1 on a CPU write what is in memory where the gradient of a GELU is transposed.
        feat_extract_activation="relu",
        conv_stride=(4, 4),
        conv_kernel=(4, 4),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        layerdrop=rate,
        mask_time_prob=0.0,
        attention_dropout=0.0,
    )
    return transformers.Wav2Vec2Model(config).train()


def bart_encoder(rate: float) -> Any:
    """The encoder skips; in some steps all of its layers. (Without any layer of a decoder its encoder is cut off.)"""
    config = transformers.BartConfig(
        vocab_size=20,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=16,
        encoder_layerdrop=rate,
        decoder_layerdrop=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    )
    return transformers.BartForConditionalGeneration(config).train()


class Siamese(torch.nn.Module):
    """One encoder, called twice in a forward: a layer may be skipped in one of the calls only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.encoder = wav2vec2(rate)

    def forward(self, input_values: Any) -> Any:
        one, other = (self.encoder(input_values=x).last_hidden_state for x in (input_values, input_values.flip(0)))
        return BaseModelOutput(last_hidden_state=one + 0.5 * other)


def batch(kind: str, number: int) -> Dict[str, Any]:
    generator = torch.Generator().manual_seed(100 * number + distributed.get_rank())
    if kind == "bart_encoder":
        words = torch.randint(3, 20, (2, 8), generator=generator)
        return {"input_ids": words, "labels": words}
    return {"input_values": torch.randn(2, 400, generator=generator)}


def loss(output: Any) -> Any:
    """Of a model without a head, a weighted sum: the output of a layer norm always has the same mean square."""
    if "loss" in output:
        return output.loss
    state = output.last_hidden_state
    return (state * torch.linspace(-1.0, 1.0, state.numel()).view_as(state)).mean()


def run(scenario: Dict[str, Any]) -> None:
    """``record``: a digest of all parameters and one of which gradients are None after each step, and more."""
    record, plan = scenario["found"], scenario["comparison"]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    torch.manual_seed(5)
    inner = {"wav2vec2": wav2vec2, "bart_encoder": bart_encoder, "siamese": Siamese}[plan["model"]](plan["rate"])
    checkpointed(inner, plan["checkpointing"])
    record["recomputed"] = recomputed = [0]
    CheckpointFunction.backward = counting(recomputed)
    torch.manual_seed(distributed.get_rank())
    model = DistributedDataParallel(inner, bucket_cap_mb=plan["cap"], **scenario["ddp"])
    if scenario["hook"]:
        register(model, scenario["hook"])
    optimizer = OPTIMIZERS[plan["optimizer"]](model.parameters())
    exchanges = exchanges_of(model) if scenario["settings"] is not None else []
    record.update(flag=model.find_unused_parameters, views=model.gradient_as_bucket_view, steps=[], none=[], layers=[])
    for step in range(scenario["steps"]):
        optimizer.zero_grad(set_to_none=plan["to_none"])
        for index in range(plan["accum"]):
            last = index == plan["accum"] - 1
            with contextlib.nullcontext() if last else model.no_sync():
                output = model(**batch(plan["model"], step * plan["accum"] + index))
                (loss(output) / plan["accum"]).backward()
        optimizer.step()
        record["none"].append(digest([torch.tensor(p.grad is None) for p in model.parameters()]))
        record["steps"].append(digest(list(model.parameters())))
    record["exchanges"] = len(exchanges)
    # Numbers that are none compare as equal.
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert len(set(record["steps"])) == len(record["steps"])


def register(model: Any, name: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powerSGD_hook":
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, getattr(default_hooks, name))


def exchanges_of(model: Any) -> List[int]:
    """What grows with each exchange of what the ranks have used, in a model that has no flag."""
    from ddpfix.patches.torch.pipeline import ddp
    from ddpfix.patches.torch.unused.states import REDUCTION

    seen: List[int] = []
    reduction: Any = REDUCTION.of(ddp.of(model))  # type: ignore[arg-type]
    if reduction is not None:
        stock = reduction.used._reduce

        def exchange(*given: Any) -> Any:
            seen.append(1)
            return stock(*given)

        reduction.used._reduce = exchange
    return seen


def checkpointed(model: Any, kind: str) -> None:
    """``layers-`` by transformers itself, or ``encoder-`` around it all as a user writes it; "" is none."""
    where, _, kind = kind.partition("-")
    keywords: Dict[str, Any] = {} if kind == "default" else {"use_reentrant": kind == "reentrant"}
    if where == "layers":
        model.gradient_checkpointing_enable(**({"gradient_checkpointing_kwargs": keywords} if keywords else {}))
        if getattr(model, "get_decoder", None) is not None:
            # Of what decoder layers give back to the encoder, plain torch adds up the parts in another order then.
            model.get_decoder().gradient_checkpointing = False
    elif where == "encoder":
        encoder = model.get_encoder() if hasattr(model, "get_encoder") else model.encoder
        original = encoder.forward

        def forward(*args: Any, **others: Any) -> Any:
            # The reentrant kind takes no keywords, and needs an argument that requires a gradient.
            def states(_: Any, *given: Any) -> Any:
                return original(*given, **others).last_hidden_state

            known = torch.zeros((), requires_grad=True)
            return BaseModelOutput(last_hidden_state=checkpoint(states, known, *args, **keywords))

        encoder.forward = forward


def counting(count: List[int]) -> Any:
    """The backward of reentrant checkpointing, with a counter."""
    original = CheckpointFunction.backward

    def backward(*args: Any) -> Any:
        count[0] += 1
        return original(*args)

    return staticmethod(backward)


def digest(tensors: List[Any]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]
