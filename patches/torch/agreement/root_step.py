"""Steps of models that are not under DDP: ranks agree once, and from then on each training forward is one step."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch

from ddpfix.exchange.rendezvous import Members
from ddpfix.layerdrop import cover, training
from ddpfix.models import internals, wrap_hooks
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.dynamo import skip_frames
from ddpfix.patching.site import Site

from . import stage as agreement


class Unasked:
    """Roots whose ranks could not be asked: they are not asked again in each step."""

    def __init__(self) -> None:
        self.roots: ByIdentity[bool] = ByIdentity()


class First:
    """The moment at which ranks agree on a model; ``waits``: each parameter's gradient is waited for, as by FSDP."""

    def __init__(self, site: Site, model: Any, members: Members, waits: bool) -> None:
        self.site, self.model, self.members, self.waits = site, model, members, waits
        self.failure: Optional[Exception] = None
        self.seed: Optional[int] = None


def _look(first: First) -> None:
    first.failure = wrap_hooks.run_before_wrap(first.model)


def _agree(first: First) -> None:
    first.seed = agreement.agree_on(first.site, first.model, first.members, first.failure)


def _checkpoints(first: First) -> None:
    if first.waits and cover.active(first.model):
        wrap_hooks.forbid_reentrant(first.model)


ORDER: Tuple[Callable[[First], None], ...] = (
    _look,  # These hooks may change which layers a model skips, and ranks compare that next.
    _agree,  # All ranks have to be present before anything else happens.
    _checkpoints,  # Depends on whether the model skips layers.
)


def put(site: Site, owner: type, factory: Callable[[Any], Callable[..., Any]]) -> None:
    """Make the forward of a class the step of its models: ``factory(original)`` returns what is called in its place."""
    site.wrap_hot(owner, "forward", factory)
    skip_frames(vars(owner)["forward"])
    site.at_undo(training.TRAINED.forget)


def is_inner(model: Any) -> bool:
    """Return whether a call begins no step: it is an evaluation, a part of a step, or a recomputation."""
    if not model.training or not torch.is_grad_enabled():
        return True
    return training.current() is not None or internals.in_backward()


def agreed(site: Site, root: Any, model: Any, members: Members, waits: bool = True) -> Optional[training.Replica]:
    """Agree with the other ranks on a model; its state on this rank, or None where ranks cannot agree.

    Args:
        root: what is called in each step.
        model: the module in it, or the root itself.
        members: the ranks that train it together; all of them have to come.
    """
    unasked = site.keep(Unasked).roots
    if root in unasked:
        return None
    first = First(site, model, members, waits)
    for stage in ORDER:
        stage(first)
    if first.seed is None:
        unasked[root] = True
        return None
    replica = training.register(root, model, first.seed)
    replica.is_alone = len(members.ranks) < 2
    return replica
