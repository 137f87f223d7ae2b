"""Activation checkpointing with ``find_unused_parameters=True``.

The reentrant kind, torch's default, and the flag exclude each other: DDP does not find the parameters behind such a
checkpoint, takes them for unused, and raises "Expected to mark a variable ready only once" when their gradients come
(transformers issue 30113). In a model that has the flag the checkpoint is made non-reentrant, wherever it stands:
around a layer, or around a whole encoder in the user's own code.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ddpfix import log
from ddpfix.layerdrop import training
from ddpfix.patching.site import Site

from ..internals import autograd
from . import repeated_checkpoints


def kept(site: Site, module: ModuleType, owner: Any) -> None:
    """Put on ``CheckpointFunction``, the reentrant kind; ``checkpoint`` itself stays what torch.compile knows."""
    inherited = owner.apply
    checkpoints = repeated_checkpoints.Checkpoints(owner, inherited)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        autograd.HIDING[0] += 1
        if cls is not owner or len(args) < 2 or kwargs:
            # A subclass may have a forward and a backward of its own, which torch's own apply calls.
            return super(owner, cls).apply(*args, **kwargs)
        function, preserve, *rest = args
        step = training.current()
        if step is None or not step.replica.flagged:
            return checkpoints.call(function, preserve, rest)
        log.once(_NON_REENTRANT)
        return module.checkpoint(function, *rest, use_reentrant=False, preserve_rng_state=preserve)

    site.replace(owner, "apply", classmethod(functools.wraps(getattr(inherited, "__func__", inherited))(apply)))


_NON_REENTRANT = (
    "activation checkpointing is non-reentrant in this model (use_reentrant=False): the reentrant kind cannot"
    " train with find_unused_parameters=True (DDPFIX_UNUSED=late does without the flag, and keeps it)"
)
