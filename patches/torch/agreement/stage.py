"""Ranks agree when a model is wrapped; from then on each of its training forwards is one numbered step."""

from __future__ import annotations

import itertools
import os
import sys
from types import ModuleType
from typing import Any, Iterator, List, Optional, Tuple

import torch

from ddpfix import log
from ddpfix.exchange import rendezvous
from ddpfix.layerdrop import cover, training
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

from ..internals import process_groups
from ..internals.wrapper import inner
from ..pipeline import ddp
from ..pipeline.process_group import Follower, ProcessGroup

NOT_MET = (
    "LayerDrop stays as shipped, and ranks may skip different layers: with DDP(init_sync=False) ranks cannot agree on"
    " them"
)
NOT_ASKED = (
    "LayerDrop stays as shipped, and ranks may skip different layers: they cannot agree through this process group's"
    " store. A group that torchrun starts (gloo or NCCL, env://) has one that works."
)


def ranks(site: Site, module: ModuleType, owner: Any) -> None:
    site.at_undo(training.TRAINED.forget)
    ddp.put(site, owner, Agreement(site))


def group(site: Site, module: ModuleType, owner: Any) -> None:
    """Leave a mark in the store when the process group comes up, or at once where it is up already."""
    site.keep(ProcessGroup).follow(site, module, Mark())


class Mark(Follower):
    """Leaves a mark that ddpfix is active on this rank, and another one where it ends with an error."""

    place = "agreement"

    def up(self) -> None:
        rendezvous.announce()

    def exits(self) -> None:
        rendezvous.announce_end()


class Agreement(ddp.Stage):
    """Compares the ranks of a model's group before DDP's first collective, and counts its steps."""

    place = "agreement"

    def __init__(self, site: Site) -> None:
        self._site = site

    def synchronise(self, call: ddp.Call) -> None:
        members, done = process_groups.members_of(call.group), call.facts.pop("done", "")
        call.facts["seed"] = agree_on(self._site, call.module, members, call.facts["failure"], done)

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        wrapper = model.wrapper
        module = inner(wrapper)
        seed = _seed_of_a_copy(wrapper) if call is None else call.facts.get("seed")
        flagged = bool(wrapper.find_unused_parameters and not getattr(wrapper, "static_graph", False))
        if flagged:
            wrap_hooks.forbid_reentrant(module)
        if call is not None and not call.number and cover.active(module):
            log.once(NOT_MET)
        if seed is not None:
            replica = training.register(wrapper, module, seed)
            replica.flagged, replica.is_ddp = flagged, True
            replica.is_alone = len(process_groups.ranks_of(wrapper.process_group)) < 2
            if flagged or cover.may_skip(module):
                steps = Steps(model, replica)
                model.attach(self.place, steps.begin, steps.end, steps.failed)


class Steps:
    """The steps of one model: each training forward is one, also under ``no_sync``."""

    def __init__(self, model: ddp.Wrapped, replica: training.Replica) -> None:
        self.model, self.replica = model, replica
        self.tokens: List[Optional[Tuple[training.Step, Any]]] = []

    def begin(self) -> None:
        wrapper, replica = self.model.wrapper, self.replica
        if not ddp.trains(wrapper):
            self.tokens.append(None)
            return
        # The micro-batches of an accumulation window skip the same layers if needed (see accumulation.py).
        if self.model.holds and replica.open:
            replica.iteration -= 1
        replica.open = not wrapper.require_backward_grad_sync
        self.tokens.append(training.enter(replica))

    def end(self, output: Any) -> None:
        token = self.tokens.pop()
        if token is not None:
            training.leave(token)
            watch(output, token[0])

    def failed(self, error: BaseException) -> None:
        token = self.tokens.pop() if self.tokens else None
        if token is not None:
            training.leave(token)


def watch(output: Any, step: training.Step) -> None:
    """Note when the backward of this step has begun: after it, the decisions of the step are not needed any more."""
    if not step.calls:
        return

    def reached(*gradients: Any) -> None:
        step.reached = True

    for tensor in ddp.tensors(output):
        # On the node: a hook on the tensor itself is saved with it.
        if tensor.requires_grad and tensor.grad_fn is not None:
            tensor.grad_fn.register_hook(reached)


def agree_on(
    site: Site, model: Any, members: rendezvous.Members, failure: Optional[Exception] = None, done: str = ""
) -> Optional[int]:
    """Compare with the other ranks, and return the shared seed (None: ranks cannot agree here).

    Args:
        model: the module that is wrapped, after the wrap hooks have run on it.
        failure: what the wrap hooks raised on this rank.
        done: what ddpfix has done for this model, as a line says it.

    Raises:
        AgreementError: a rank lacks ddpfix or differs.
    """
    rates = "; ".join(f"{name or 'the model'} {rate:g}" for name, _, rate in cover.active(model))
    facts = {} if site.activation is None else dict(site.activation.facts())
    facts.update({"LayerDrop": rates, "failure": "" if failure is None else repr(failure)})
    try:
        seed = rendezvous.meet(members, facts, _seed(site), site.settings.seconds())
    except rendezvous.StoreFailedError as error:
        if rates:
            raise
        log.debug(str(error))
        seed = None
    if seed is None and rates:
        log.once(NOT_ASKED)
    _log_summary(site, done)
    return seed


def _seed_of_a_copy(wrapper: Any) -> Optional[int]:
    """Return the seed of a copy: made from its group's first model without waiting, as only some ranks may train it."""
    seed = rendezvous.agreed(process_groups.members_of(wrapper.process_group).name)
    return None if seed is None else training.fold(seed, training.text_key("copy"))


def _wrappings() -> Iterator[int]:
    return itertools.count()


def _seed(site: Site) -> int:
    """Return a seed for one model at its wrapping, kept if the user has set one; its copies keep it as well."""
    chosen = site.settings.seed()
    base = torch.initial_seed() if chosen is None else chosen
    # Each wrapped model gets a seed of its own.
    return training.fold(base, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), next(site.keep(_wrappings)))


def _log_summary(site: Site, done: str) -> None:
    """Log the summary once, when the first model is wrapped, in one line with what was done for that model."""
    if site.activation is not None and log.first_time("summary"):
        for lost in site.activation.verify():
            log.warning(lost)
        site.activation.tell_untested()
        log.info(site.activation.report().summary(sys.modules), *filter(None, [done]))
    elif done:
        log.info(done)
