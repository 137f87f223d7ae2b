"""Activation checkpointing with ``find_unused_parameters=True``.

The reentrant kind, torch's default, and the flag exclude each other: DDP does not find the parameters behind such a
checkpoint, takes them for unused, and raises "Expected to mark a variable ready only once" when their gradients come
(transformers issue 30113). In a model that has the flag the checkpoint is made non-reentrant, wherever it stands:
around a layer, or around a whole encoder in the user's own code.
"""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any, Callable, Sequence

import torch

from ddpfix import log
from ddpfix.layerdrop import training
from ddpfix.patching.site import Site

from ..pipeline.checkpoints import Checkpoints
from . import second_backward
from .repeated_checkpoints import Repeated, called


def kept(site: Site, module: ModuleType, owner: Any) -> None:
    """Run reentrant checkpoints as other ones where DDP has the flag."""
    checkpoints = site.keep(Checkpoints)
    repeated = Repeated(owner, checkpoints.own)
    guarded: weakref.WeakSet[training.Replica] = weakref.WeakSet()

    def run(function: Any, preserve: bool, args: Sequence[Any]) -> Any:
        step = training.current()
        if step is None or not step.replica.flagged or not _sends_gradients(function, args):
            return repeated.call(function, preserve, args)
        log.once(_NON_REENTRANT)
        if step.replica not in guarded:
            guarded.add(step.replica)
            second_backward.refuse(step.replica)
        return module.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    checkpoints.run(site, owner, run)
    site.at_undo(second_backward.forget)


def _sends_gradients(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether gradients of parameters may come from a checkpoint, as far as it is known what it runs.

    The reentrant kind trains nothing where none of its inputs needs a gradient; the other kind would.
    """
    if not any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
        return False
    found = called(function)
    return found is None or any(parameter.requires_grad for parameter in found[0].parameters())


_NON_REENTRANT = (
    "activation checkpointing is non-reentrant in this model (use_reentrant=False): the reentrant kind cannot"
    " train with find_unused_parameters=True (DDPFIX_UNUSED=late does without the flag, and keeps it)"
)
