"""The ways to shard a model, the whole parameters of each, and the numbers that are sent."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import distributed, nn


def layers_of(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    """(name, module) of each layer that may be skipped."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if name.split(".")[-1].isdigit() and name.split(".")[-2:-1] == ["layers"] and "adapter" not in name
    ]


class Ran:
    """The names of the layers that ran, in order, since the last time it was asked."""

    def __init__(self, model: nn.Module) -> None:
        self._called: List[str] = []
        for name, module in layers_of(model):
            module.register_forward_pre_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[..., None]:
        return lambda *_: self._called.append(name)

    def take(self) -> List[str]:
        found = list(self._called)
        self._called.clear()
        return found


@contextlib.contextmanager
def only(model: nn.Module, ran: List[str]) -> Iterator[None]:
    """The model has these layers and no others."""
    lists = {name.rpartition(".")[0] for name, _ in layers_of(model)}
    holders = [(name, model.get_submodule(name.rpartition(".")[0])) for name in lists]
    before = [(holder, holder.layers) for _, holder in holders]
    try:
        for name, holder in holders:
            kept = [layer for index, layer in enumerate(holder.layers) if f"{name}.{index}" in ran]
            holder.layers = nn.ModuleList(kept)
        yield
    finally:
        for holder, layers in before:
            holder.layers = layers


def decided(model: Any) -> Optional[List[str]]:
    """What ddpfix says of the last step or forward; None where it has no say."""
    try:
        import ddpfix

        return sorted(f"{skip.module}.{skip.layer}".lstrip(".") for skip in ddpfix.skipped_layers(model))
    except LookupError:
        return None


def fsdp1(model: nn.Module, **others: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    kinds = {type(module) for _, module in layers_of(model)}
    others.setdefault("auto_wrap_policy", ModuleWrapPolicy(kinds))
    others.setdefault("use_orig_params", True)
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **others)


def mesh(*shape: int) -> Any:
    """One of shards, or of replicas of shards."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards") if len(shape) > 1 else None)


def fsdp2(model: nn.Module, *shape: int) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    made = mesh(*(shape or (distributed.get_world_size(),)))
    for _, layer in layers_of(model):
        fully_shard(layer, mesh=made)
    return fully_shard(model, mesh=made)  # type: ignore[return-value]


def fsdp1_hybrid(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import ShardingStrategy

    two = mesh(2, distributed.get_world_size() // 2)
    return fsdp1(model, device_mesh=two, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


KINDS: Dict[str, Callable[[nn.Module], nn.Module]] = {
    "fsdp1": fsdp1,
    # The optimizer sees one flat parameter a layer.
    "fsdp1_flat": functools.partial(fsdp1, use_orig_params=False),
    # One flat parameter for the whole model, so nothing is gathered layer by layer.
    "fsdp1_whole": functools.partial(fsdp1, auto_wrap_policy=None),
    "fsdp1_forward_prefetch": functools.partial(fsdp1, forward_prefetch=True),
    "fsdp1_hybrid": fsdp1_hybrid,
    "fsdp2": fsdp2,
    # Two replicas.
    "fsdp2_hybrid": lambda model: fsdp2(model, 2, distributed.get_world_size() // 2),
}


def reduced(kind: str) -> float:
    """What a gradient of 1 on every rank becomes: 1, but FSDP2 of torch 2.8 adds them up where the backend is gloo.

    It asks for an average, which gloo takes for a sum. Later releases add up and divide by themselves.
    """
    if "fsdp2" not in kind:
        return 1.0
    probe: Any = KINDS[kind](nn.Linear(8, 1, bias=False))
    probe(torch.ones(1, 8)).sum().backward()
    return float(probe.weight.grad.full_tensor()[0, 0])


@contextlib.contextmanager
def whole(model: nn.Module) -> Iterator[Dict[str, Any]]:
    """The unsharded parameters by their names in the plain model."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            yield {name.replace("_fsdp_wrapped_module.", ""): value for name, value in model.named_parameters()}
    else:
        yield {name: value.full_tensor() for name, value in model.named_parameters()}  # type: ignore[attr-defined]


@contextlib.contextmanager
def micro_batch(model: nn.Module, last: bool) -> Iterator[None]:
    """Gradients are reduced with the last micro-batch of a step only."""
    if hasattr(model, "no_sync"):
        with contextlib.nullcontext() if last else model.no_sync():  # type: ignore[operator]
            yield
    else:
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield


class Sent:
    """Counts gathers and reductions, and their numbers."""

    _GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single")
    _REDUCES = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single")

    def __init__(self) -> None:
        self.gathers: List[int] = []
        self.reduces: List[int] = []
        for names, counted, first in ((self._GATHERS, self.gathers, 0), (self._REDUCES, self.reduces, 1)):
            for name in names:
                if hasattr(distributed, name):
                    setattr(distributed, name, self._counting(getattr(distributed, name), counted, first))

    @staticmethod
    def _counting(original: Callable[..., Any], counted: List[int], place: int) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            # The keyword is called output, output_tensor or output_tensor_list, and the input likewise.
            word = ("output", "input")[place]
            tensors = args[place] if len(args) > place else next(v for k, v in kwargs.items() if k.startswith(word))
            each = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            counted.append(sum(tensor.numel() for tensor in each))
            return original(*args, **kwargs)

        return called

    def take(self) -> Tuple[List[int], List[int]]:
        """The sizes of all gathers and all reductions since the last time."""
        taken = (list(self.gathers), list(self.reduces))
        self.gathers.clear()
        self.reduces.clear()
        return taken
