"""Activation checkpointing with ``find_unused_parameters=True``.

The reentrant kind, torch's default, and the flag exclude each other: DDP does not find the parameters behind such a
checkpoint, takes them for unused, and raises "Expected to mark a variable ready only once" when their gradients come
(transformers issue 30113). In a model that has the flag the checkpoint is made non-reentrant, wherever it stands:
around a layer, or around a whole encoder in the user's own code.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Sequence, Set

import torch

from ddpfix import log
from ddpfix.layerdrop import training
from ddpfix.patching.site import Site

from ..internals import autograd
from ..pipeline import ddp
from ..pipeline.checkpoints import Checkpoints
from . import second_backward
from .repeated_checkpoints import Repeated, called, kind_of


def kept(site: Site, module: ModuleType, owner: Any) -> None:
    """Run reentrant checkpoints as other ones where DDP has the flag, and they hide parameters from it."""
    checkpoints = site.keep(Checkpoints)
    converted = Converted(module, Repeated(owner, checkpoints.own))
    checkpoints.run(site, owner, converted.run)
    site.at_undo(second_backward.forget)


class Converted:
    """The checkpoints of models that have the flag.

    Args:
        module: ``torch.utils.checkpoint``.
        repeated: runs a reentrant one.
    """

    def __init__(self, module: ModuleType, repeated: Repeated) -> None:
        self._module, self._repeated = module, repeated
        # By model and what is checkpointed: does the reentrant kind hide parameters that DDP looks for?
        self._hiding: ddp.Slot[Set[Any]] = ddp.Slot()
        self._harmless: ddp.Slot[Set[Any]] = ddp.Slot()

    def run(self, function: Any, preserve: bool, args: Sequence[Any]) -> Any:
        """Run one; see :data:`..pipeline.checkpoints.Run`."""
        step = training.current()
        model = None if step is None or not step.replica.flagged else ddp.of_replica(step.replica)
        if model is None or not _may_send_gradients(function, args):
            return self._repeated.call(function, preserve, args)
        kind = kind_of(function)
        hiding = self._hiding.of(model) or self._hiding.put(model, set())
        harmless = self._harmless.of(model) or self._harmless.put(model, set())
        if kind in harmless:
            return self._repeated.call(function, preserve, args)
        output = self._module.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)
        if kind not in hiding:
            hides = _hides(output, args, model)
            (hiding if hides else harmless).add(kind)
            if hides:
                log.once(_NON_REENTRANT)
                second_backward.refuse(model)
        return output


def _may_send_gradients(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Return whether gradients of parameters may come from a checkpoint, as far as it is known before it has run.

    The reentrant kind trains nothing where none of its inputs needs a gradient; the other kind would.
    """
    if not (torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)):
        return False
    found = called(function)
    if found is None:
        return not str(getattr(function, "__module__", None)).startswith(("torch.", "None"))
    return any(parameter.requires_grad for parameter in found[0].parameters())


def _hides(output: Any, args: Sequence[Any], model: ddp.Wrapped) -> bool:
    """Return whether a part of the graph that the reentrant kind would hide leads to a parameter of the model."""
    own = {id(parameter) for parameter in model.parameters}
    given = [each.grad_fn for each in args if isinstance(each, torch.Tensor) and each.grad_fn is not None]
    return any(id(leaf) in own for leaf in autograd.leaves(ddp.tensors(output), given))


_NON_REENTRANT = (
    "activation checkpointing is non-reentrant in this model (use_reentrant=False): the reentrant kind cannot"
    " train with find_unused_parameters=True (DDPFIX_UNUSED=late does without the flag, and keeps it)"
)
