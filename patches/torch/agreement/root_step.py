"""Steps of models that are not under DDP: ranks agree once, and from then on each training forward is one step."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from ddpfix.exchange.rendezvous import Members
from ddpfix.layerdrop import cover, training
from ddpfix.models import internals, wrap_hooks
from ddpfix.models.identity import ByIdentity
from ddpfix.patching import tracebacks
from ddpfix.patching.dynamo import skip_frames
from ddpfix.patching.site import Site

from . import stage as agreement


class Unasked(ByIdentity[bool]):
    """Roots whose ranks could not be asked: they are not asked again in each step."""


def put(
    site: Site, owner: type, find: Callable[[Any], Optional[training.Replica]], check: Callable[[Any, Any], None]
) -> None:
    """Make the forward of a class the step of its models.

    Args:
        find: returns the state of a model on this rank; None where its forward is no step.
        check: is called with the model and the step after each.
    """

    def factory(original: Any) -> Callable[..., Any]:
        def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
            replica = find(self)
            if replica is None:
                return original(self, *inputs, **kwargs)
            token = training.enter(replica)
            try:
                output = original(self, *inputs, **kwargs)
            except BaseException as error:
                tracebacks.hide(error)
                raise
            finally:
                training.leave(token)
            check(self, token[0])
            agreement.watch(output, token[0])
            return output

        return forward

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
        waits: whether each parameter's gradient is waited for, as by FSDP.
    """
    unasked = site.keep(Unasked)
    if root in unasked:
        return None
    # These hooks may change which layers a model skips, which ranks compare next.
    failure = wrap_hooks.run_before_wrap(model)
    seed = agreement.agree_on(site, model, members, failure)
    if waits and cover.active(model):
        wrap_hooks.forbid_reentrant(model)
    if seed is None:
        unasked[root] = True
        return None
    replica = training.register(root, model, seed)
    replica.is_alone = len(members.ranks) < 2
    return replica
