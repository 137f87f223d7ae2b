"""Stochastic depth of NeMo's conformer encoder (arXiv 2102.03216): a dropped layer is not computed, on any rank.

NeMo computes each layer that it drops, and multiplies what it computed by zero, because ranks that skip different
layers would wait for each other for ever. Ranks under ddpfix skip the same ones. For the length of a training forward
the list of layers is shadowed by one in which a dropped layer gives back its input, and one that is kept is scaled as
NeMo scales it; the encoder's own code then finds no rate, and does no more. The draw of each layer is made as before.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from types import ModuleType
from typing import Any, Callable, List, Tuple

import torch

from ddpfix.layerdrop import cover, everywhere, training
from ddpfix.patching.dynamo import skip_frames
from ddpfix.patching.site import PatchError, Site

_METHOD, _RATES, _LAYERS = "forward_internal", "layer_drop_probs", "layers"


def put(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on the method that goes through the layers; with ``off`` it drops none, and scales none."""
    _check(site, owner)
    if everywhere.is_off(site):
        site.wrap_hot(owner, _METHOD, _without)
        return
    site.wrap_hot(owner, _METHOD, _forward)
    skip_frames(vars(owner)[_METHOD])
    cover.record(site, owner, _METHOD, _rate)


def _check(site: Site, owner: Any) -> None:
    """Compare the lines about a dropped layer with the ones that were read, by their hash."""
    method = inspect.unwrap(vars(owner).get(_METHOD, None) or _nothing)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError) as error:
        raise PatchError(f"the source of {owner.__qualname__}.{_METHOD} is unavailable") from error
    if not set(_hashes(tree)) & set(site.examined.get("dropping", ())):
        raise PatchError(f"{owner.__qualname__}.{_METHOD} drops layers differently from the releases that were read")


def _nothing() -> None:
    """Stands for a method that is not there."""


def _hashes(tree: ast.AST) -> List[str]:
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and _RATES in ast.dump(node.iter)]
    tests = [node for loop in loops for node in loop.body if isinstance(node, ast.If) and "drop_prob" in ast.dump(node)]
    # NeMo needs a Python that can write a tree as text, which is the same in all of its versions.
    return [hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:12] for node in tests]


def _rate(encoder: Any) -> float:
    return max((float(rate) for rate in getattr(encoder, _RATES, ())), default=0.0)


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.training or not _rate(self) or _has_caches(kwargs):
            return original(self, *args, **kwargs)
        step = training.current()
        # Engines that shard parameters want the gradients that a layer computes; a recomputation has no step.
        if step is not None and not step.replica.is_ddp:
            return original(self, *args, **kwargs)
        call = cover.shared_call(self, args, kwargs, _METHOD)
        if call is None or call.base is None:
            return original(self, *args, **kwargs)
        zeros = not call.is_flagged()
        layers = [_Turn(layer, rate, bool(rate) and call.drops(layer, rate), zeros) for layer, rate in _pairs(self)]
        try:
            return _shadowed(original, self, layers, args, kwargs)
        finally:
            call.ended()

    return forward


def _has_caches(kwargs: Any) -> bool:
    """Return whether there are caches of earlier chunks, as in inference: a layer gives back new ones as well."""
    return any(value is not None for name, value in kwargs.items() if name.startswith("cache_last"))


def _without(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.training or not _rate(self):
            return original(self, *args, **kwargs)
        return _shadowed(original, self, [_Turn(layer, 0.0, False, False) for layer, _ in _pairs(self)], args, kwargs)

    return forward


def _pairs(encoder: Any) -> List[Tuple[Any, float]]:
    return [(layer, float(rate)) for layer, rate in zip(encoder.layers, encoder.layer_drop_probs)]


def _shadowed(original: Callable[..., Any], encoder: Any, layers: List[_Turn], args: Any, kwargs: Any) -> Any:
    """Call a forward that sees these layers, and no rate at which it would drop any."""
    own = vars(encoder)
    rates = own[_RATES]
    own[_LAYERS], own[_RATES] = layers, [0.0] * len(rates)
    try:
        return original(encoder, *args, **kwargs)
    finally:
        del own[_LAYERS]
        own[_RATES] = rates


class _Turn:
    """One layer in one forward: computed and scaled, or left out, with gradients of zeros where ``zeros`` says so."""

    def __init__(self, layer: Any, rate: float, dropped: bool, zeros: bool) -> None:
        self._layer, self._rate, self._dropped, self._zeros = layer, rate, dropped, zeros

    def __call__(self, x: Any, **kwargs: Any) -> Any:
        computed = self._left_out(x) if self._dropped else self._layer(x=x, **kwargs)
        if not self._rate:
            return computed
        # NeMo's own draw, behind the layer, so that the generator goes on as it does without ddpfix.
        torch.rand(1)
        return computed if self._dropped else (computed - x) / (1.0 - self._rate) + x

    def _left_out(self, x: Any) -> Any:
        trained = [each for each in self._layer.parameters() if each.requires_grad] if self._zeros else []
        return _Zeros.apply(x, *trained) if trained and torch.is_grad_enabled() else x

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


class _Zeros(torch.autograd.Function):  # type: ignore[misc]
    """Gives back its input, and gradients of zeros to parameters."""

    @staticmethod
    def forward(ctx: Any, x: Any, *parameters: Any) -> Any:
        ctx.shapes = [(each.shape, each.dtype, each.device) for each in parameters]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes]
        return (gradients[0], *made)
