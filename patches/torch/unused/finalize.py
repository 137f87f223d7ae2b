"""DDP without ``find_unused_parameters``: which models have their reductions finalized after backward.

``auto`` does so wherever DDP has no flag and the user has not set ``find_unused_parameters=False`` explicitly; ``late``
does so everywhere, instead of the flag. :mod:`.finalizer` has the method.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, Optional, Type

from ddpfix import log
from ddpfix.exchange import roll_call
from ddpfix.exchange.keys import can_ask
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site

from ..internals import process_groups
from ..internals import wrapper as private
from ..pipeline import ddp
from ..pipeline.backward import Backwards
from ..pipeline.checkpoints import Checkpoints
from ..pipeline.optimizers import Steps
from ..pipeline.step_count import CLOCK
from . import flag, skipped_layers
from .states import ARMED, PLACE, REDUCTION

if TYPE_CHECKING:
    from .finalizer import Finalizer


def after_backward(site: Site, module: ModuleType, owner: Any) -> None:
    wrap_hooks.replaces_flag(site, _possible)
    steps = site.keep(Steps)
    # Not with the last model: torch may be calling its hooks when that one is collected.
    site.at_undo(lambda: steps.leave(PLACE))
    ddp.put(site, owner, Finalize(site, everywhere=site.settings["unused"] == "late"))
    site.wrap(owner, "_match_all_reduce_for_bwd_pass", _joined)


def _joined(wrapped: Any, wrapper: Any, args: Any, kwargs: Any) -> Any:
    """Exchange, too, where a rank without batches takes part in the reductions of the others (``join()``)."""
    result, model = wrapped(*args, **kwargs), ddp.of(wrapper)
    reduction = None if model is None else REDUCTION.of(model)
    if reduction is not None:
        reduction.used.joined()
    return result


def checkpoints(site: Site, module: ModuleType, owner: Any) -> None:
    """Count reentrant checkpoints: reductions are finalized by what the engine sees, and these hide a part of it."""
    site.keep(Checkpoints).count(site, owner)


class Finalize(ddp.Stage):
    """Finalizes where DDP has no flag and the user has not set ``find_unused_parameters=False``, or everywhere."""

    place = PLACE

    def __init__(self, site: Site, everywhere: bool) -> None:
        self._site, self._everywhere = site, everywhere

    def arguments(self, call: ddp.Call) -> None:
        call.facts["refused"] = flag.user_choice(call.arguments) is False

    def synchronise(self, call: ddp.Call) -> None:
        # Ranks that have not agreed on what ddpfix does are asked nothing more.
        if call.facts.get("seed") is not None:
            flagged = call.arguments.get(flag.FLAG) and not call.facts.get("flag is ours")
            refused = call.facts["refused"] and not self._everywhere
            willing = not flagged and not refused and _possible(call.arguments)
            roll = roll_call.RollCall(
                f"used/{call.number}", process_groups.ranks_of(call.group), roll_call.limit_of(call.group)
            )
            call.facts["exchanges"] = roll.same(str(willing)) and willing

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        wrapper = model.wrapper
        if call is not None:
            model.exchanges = call.facts.get("exchanges", False)
        refused = call is not None and call.facts["refused"] and not self._everywhere
        if refused or wrapper.find_unused_parameters:
            return
        reason = impossible(wrapper)
        if reason:
            log.debug(f"reductions of a {type(wrapper.module).__name__} are left to torch: {reason}")
            return
        backwards = self._site.keep(Backwards)
        backwards.follow(self._site, self.place)
        finalizer = _finalizer()(model, self._site.keep(Steps), backwards)
        REDUCTION.put(model, finalizer)
        skipped_layers.follow(model)
        clock = CLOCK.of(model)
        if clock is not None:
            clock.is_armed = functools.partial(_is_armed, weakref.ref(finalizer))
        model.attach(self.place, finalizer.forward_begins, finalizer.forward_ended, finalizer.forward_failed)
        replica = ddp.replica(model)
        if replica is not None:
            # Without the flag, checkpointing of either kind works.
            replica.flagged = False

    def ended(self, model: ddp.Wrapped) -> None:
        reduction = REDUCTION.clear(model)
        if reduction is not None:
            clock = CLOCK.of(model)
            if clock is not None:
                clock.is_armed = None
            reduction.end()
            skipped_layers.leave(model)


def _finalizer() -> Type[Finalizer]:
    """Return the class; a process without a model under DDP does without its six modules."""
    fresh = f"{__package__}.finalizer" not in sys.modules
    from .finalizer import Finalizer

    if fresh:
        ddp.untrace()
    return Finalizer


def _is_armed(reference: weakref.ref[Finalizer]) -> bool:
    """Return whether a model waits for a first gradient; the clock, which outlives the finalizer, does not keep it."""
    known = reference()
    return known is not None and known.state is ARMED


def _possible(arguments: Dict[str, Any]) -> bool:
    """Return whether reductions can be finalized, as far as the constructor's arguments show it."""
    return can_ask() and not any(arguments.get(name) for name in ("static_graph", "mixed_precision", *_DELAYED))


_DELAYED = ("delay_all_reduce_named_params", "param_to_hook_all_reduce")


def impossible(wrapper: Any) -> str:
    """Return why reductions cannot be finalized with right gradients; "" if they can."""
    if getattr(wrapper, "static_graph", False):
        return "static_graph=True expects the same parameters in each step"
    if getattr(wrapper, "mixed_precision", None) is not None:
        return "DDP's mixed_precision hooks hide when gradients arrive"
    if private.has_python_reducer(wrapper):
        return "compiled autograd reduces without a reducer"
    if private.delays(wrapper):
        return "delay_all_reduce_named_params reduces some parameters separately"
    if not can_ask():
        return "ranks cannot compare their numbers of backwards through this process group's store"
    return ""
