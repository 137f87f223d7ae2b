"""Trains models and records what is compared with a run in another mode: with LayerDrop, or under torch.compile."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from typing import Any, Dict, List

import torch
import transformers
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction, checkpoint
from transformers.modeling_outputs import BaseModelOutput

from tests.support import zoo

OPTIMIZERS: Dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.002, weight_decay=0.1),
}


def wav2vec2() -> Any:
    """With dropout, whose draws a recomputation has to repeat."""
    config = zoo.tiny_model("wav2vec2").make_config()
    config.update({"hidden_dropout": 0.1, "activation_dropout": 0.1})
    return transformers.Wav2Vec2Model(config).train()


def bart_encoder() -> Any:
    """The encoder skips; in some steps all of its layers. (Without any layer of a decoder its encoder is cut off.)"""
    config = zoo.tiny_model("bart").make_config()
    config.update({"encoder_layers": 2, "decoder_layers": 2, "decoder_layerdrop": 0.0, "dropout": 0.1})
    return transformers.BartForConditionalGeneration(config).train()


class Siamese(nn.Module):
    """One encoder, called twice in a forward: a layer may be skipped in one of the calls only."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = wav2vec2()

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
        return output["loss"]
    state = output["last_hidden_state"]
    return (state * torch.linspace(-1.0, 1.0, state.numel()).view_as(state)).mean()


def train(
    record: Dict[str, Any],
    model: str = "wav2vec2",
    optimizer: str = "sgd",
    accum: int = 1,
    checkpointing: str = "",
    to_none: bool = True,
    cap: float = 0.01,
    hook: str = "",
    steps: int = 6,
    **ddp: Any,
) -> None:
    """``record``: a digest of all parameters and one of which gradients are None after each step, and more.

    Args:
        hook: a communication hook of torch's default_hooks, "powerSGD_hook", or "".
    """
    inner = {"wav2vec2": wav2vec2, "bart_encoder": bart_encoder, "siamese": Siamese}[model]()
    checkpointed(inner, checkpointing)
    record["recomputed"] = recomputed = [0]
    CheckpointFunction.backward = counting(recomputed)
    torch.manual_seed(distributed.get_rank())
    wrapper = DistributedDataParallel(inner, bucket_cap_mb=cap, **ddp)
    if hook:
        register(wrapper, hook)
    made = OPTIMIZERS[optimizer](wrapper.parameters())
    exchanges = exchanges_of(wrapper)
    record.update(flag=wrapper.find_unused_parameters, views=wrapper.gradient_as_bucket_view, steps=[], none=[])
    for step in range(steps):
        made.zero_grad(set_to_none=to_none)
        for index in range(accum):
            with contextlib.nullcontext() if index == accum - 1 else wrapper.no_sync():
                output = wrapper(**batch(model, step * accum + index))
                (loss(output) / accum).backward()
        made.step()
        record["none"].append(digest([torch.tensor(p.grad is None) for p in wrapper.parameters()]))
        record["steps"].append(digest(list(wrapper.parameters())))
    record["exchanges"] = len(exchanges)
    # Numbers that are none compare as equal.
    assert all(bool(torch.isfinite(p).all()) for p in wrapper.parameters())
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
    known = ddp.of(model)
    reduction: Any = None if known is None else REDUCTION.of(known)
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


# ``torch.compile(DistributedDataParallel(model))``, and what torch.compile made of it.
WIDTH = 512


class Stack(nn.Module):
    """Blocks, and, with ``spare``, one that is never used."""

    def __init__(self, spare: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        if spare:
            self.never = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return {"last_hidden_state": x}


def compiled(record: Dict[str, Any], build: Any, size: Any = (4, WIDTH), compiles: bool = True, **ddp: bool) -> None:
    from torch._dynamo.utils import counters

    graphs: List[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    # Some blocks share a bucket, and others have one of their own: DDP cuts the graph between them.
    wrapped = DistributedDataParallel(build(), bucket_cap_mb=2, **ddp)
    model = torch.compile(wrapped, backend=backend) if compiles else wrapped
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    record["steps"] = []
    for number in range(4):
        torch.manual_seed(100 * number + distributed.get_rank())
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * number + distributed.get_rank())
        loss(model(torch.randn(*size, generator=generator))).backward()
        optimizer.step()
        record["steps"].append(digest(list(model.parameters())))
    record["graphs"], record["flag"] = len(graphs), wrapped.find_unused_parameters
    record["frames"], record["breaks"] = counters["frames"]["total"], sum(counters["graph_break"].values())


stack: Any = functools.partial(compiled, build=Stack)
static: Any = functools.partial(compiled, build=Stack, static_graph=True)
spare: Any = functools.partial(compiled, build=lambda: Stack(spare=True))
spare_eager: Any = functools.partial(spare, compiles=False)
layerdrop: Any = functools.partial(compiled, build=wav2vec2, size=(2, 400))
layerdrop_flag: Any = functools.partial(layerdrop, find_unused_parameters=True)
layerdrop_eager: Any = functools.partial(layerdrop, compiles=False)
