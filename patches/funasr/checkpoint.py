"""Encoder layers keep their input only, and are run again in the backward pass: less memory, about a third more time.

No release of FunASR has activation checkpointing in its ASR encoders. It is an option (``DDPFIX_FUNASR_CHECKPOINT=1``).
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ddpfix.patching.dynamo import skip_frames
from ddpfix.patching.site import Site

from ..torch.internals.tensors import buffers_in, is_norm


def layers(site: Site, module: ModuleType, owner: Any) -> None:
    """Run each layer of this class through ``torch.utils.checkpoint``, of the kind that is not reentrant.

    Gradients equal those without checkpointing to the last bit: the random state is restored for the second run, and
    what is no function of the input (the running averages of batch norm) is left out of it.
    """
    site.wrap_hot(owner, "forward", _checkpointed)
    skip_frames(vars(owner)["forward"])


def _checkpointed(original: Any) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return original(self, *args, **kwargs)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(_Run(original, self), *args, use_reentrant=False, **kwargs)

    return forward


class _Run:
    """One call of a layer, and what repeats it."""

    def __init__(self, original: Any, layer: Any) -> None:
        self.original, self.layer = original, layer
        self.repeats = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.repeats:
            self.repeats = True
            return self.original(self.layer, *args, **kwargs)
        with _averages_spared(self.layer):
            return self.original(self.layer, *args, **kwargs)


@contextlib.contextmanager
def _averages_spared(layer: Any) -> Iterator[None]:
    """Running averages are updated by the first run; the second one works on copies."""
    kept: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
    for part in layer.modules():
        if is_norm(part):
            buffers = buffers_in(part)
            kept.append((buffers, dict(buffers)))
            buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield
    finally:
        for buffers, were in kept:
            buffers.update(were)
