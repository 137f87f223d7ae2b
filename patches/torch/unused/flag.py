"""``find_unused_parameters=True`` reaches DDP where the model needs it and the user has not chosen otherwise.

A model that skips layers leaves their parameters without gradient; DDP then fails in the next forward (pytorch issue
90171, speechbrain 2340, transformers 17116).
"""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType
from typing import Any, Dict, List, Optional, Tuple

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Site
from ddpfix.user_code import package_that_calls, whose

from ..internals import modes
from ..internals.reducer import use_up_flag_warning
from ..internals.wrapper import rebuild
from ..pipeline import ddp

FLAG = "find_unused_parameters"


def decide(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in: the flag is decided at DDP's constructor."""
    ddp.put(site, owner, Flag(site.settings["unused"]))


class Flag(ddp.Stage):
    """Changes ``find_unused_parameters`` and ``static_graph``, by the mode: auto, find or static."""

    place = "flag"

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def arguments(self, call: ddp.Call) -> None:
        requested = user_choice(call.arguments)
        if self._mode == "static" and _may_be_static(call.module):
            call.arguments.update({"static_graph": True, FLAG: False})
        elif _decide(call, self._mode == "find"):
            call.facts["flag is ours"] = self._mode != "find" and not call.arguments.get(FLAG)
            call.facts["flag is theirs"] = bool(user_choice(call.arguments))
            call.arguments[FLAG] = True
        note = "" if self._mode == "auto" else f"DDPFIX_UNUSED={self._mode}"
        if call.arguments.get("static_graph"):
            note = "static_graph=True"
        log.setting(FLAG, requested, bool(call.arguments.get(FLAG)), note)

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        facts = {} if call is None else call.facts
        model.flag_is_ours = facts.get("flag is ours", False)
        if not facts.get("flag is theirs", True):
            model.attach(self.place, before=functools.partial(_use_up_warning, model))
        if facts.get("done"):
            # Where ranks agree, it stands in the line with the summary.
            log.info(facts.pop("done"))

    def hook(self, model: ddp.Wrapped, state: Any, hook: Any) -> None:
        if model.flag_is_ours and getattr(hook, "__name__", "") in _EXCLUDED_HOOKS:
            _unset_flag(model, hook.__name__)


def _use_up_warning(model: ddp.Wrapped) -> None:
    """Before the first forward of a model to which ddpfix has given the flag, keep torch from warning of it.

    torch warns once a process, of the first model whose forward uses all parameters. A model whose user has set the
    flag still gets the warning where its forward comes first.
    """
    model.detach(Flag.place)
    with contextlib.suppress(Exception), modes.hidden(), modes.Uncounted():
        use_up_flag_warning(model.wrapper.process_group)


# Hooks that start further collectives, which interleave with the one of DDP's bitmap of used parameters: ranks may wait
# for ever (gloo does), in plain torch as well.
_EXCLUDED_HOOKS = ("powerSGD_hook", "batched_powerSGD_hook")


def _unset_flag(model: ddp.Wrapped, hook: str) -> None:
    """Rebuild DDP's reducer without the flag, as DDP does for a copy, if the model can train without it."""
    wrapper = model.wrapper
    if not wrap_hooks.can_replace_flag({}):
        return
    model.flag_is_ours = wrapper.find_unused_parameters = False
    rebuild(wrapper)
    ddp.rebuild_stages(model)
    log.info(
        f"removed {FLAG}=True again, because ranks may deadlock when {hook} is combined with it. Parameters without"
        " gradient are marked as ready after each backward instead"
    )


def _may_be_static(model: Any) -> bool:
    skipping = _skipping(model, decided=True)
    if skipping:
        log.warning(f"DDPFIX_UNUSED=static does not work with LayerDrop ({_named(skipping)}): auto is used instead")
    return not skipping


def _decide(call: ddp.Call, always: bool) -> bool:
    """Return whether to set the flag to True."""
    arguments = call.arguments
    user_value = user_choice(arguments)
    skipping = _skipping(arguments["module"], bool(arguments.get("static_graph")) or user_value is not None)
    if not skipping and not always:
        return _was_dropped(call)
    names = _named(skipping)
    if arguments.get("static_graph"):
        # A static graph accepts parameters that are unused in every step.
        if skipping:
            log.warning(f"static_graph=True fails with LayerDrop ({names}). Remove it, or set the rate to 0")
        return False
    if user_value is not None:
        if not user_value and skipping:
            _warn(names)
        # A toolkit may drop its user's setting before it builds DDP.
        return user_value
    excluding = [] if always else wrap_hooks.excluded(arguments["module"])
    if excluding and wrap_hooks.can_replace_flag(arguments):
        log.info(
            f"{FLAG} is not set ({names} skips layers at random), because {', '.join(excluding)} does not work with it."
            " ddpfix completes each reduction after the backward instead. DDPFIX_UNUSED=find sets the flag"
        )
        return False
    if not arguments.get(FLAG):
        why = f"{names} skips layers at random" if names else "DDPFIX_UNUSED=find asks for it"
        call.facts["done"] = f"set {FLAG}=True, because {why}"
    return True


def _was_dropped(call: ddp.Call) -> bool:
    """Return whether the user has typed True, and the toolkit has lost it before it builds DDP."""
    arguments = call.arguments
    if wrap_hooks.user_choice() != (True, True) or arguments.get("static_graph") or arguments.get(FLAG):
        return False
    call.facts["done"] = f"set {FLAG}=True, as you asked: the toolkit does not pass it on to DDP"
    return True


def _skipping(model: Any, decided: bool) -> List[Tuple[str, Any, float]]:
    """Return the modules that skip layers for whose gradients DDP would wait; it waits for none of a frozen layer."""
    found = [entry for entry in cover.active(model) if any(p.requires_grad for p in entry[1].parameters())]
    return [entry for entry in found if cover.needs_flag(entry[1], decided)]


def _warn(names: str) -> None:
    package = "" if wrap_hooks.user_choice()[0] else package_that_calls()
    fix = f"Make {package} pass True" if package else "Remove it"
    log.warning(
        f"{FLAG}=False is {whose(package)} and stays, but {names} skips layers at random. A later step will raise"
        f" 'Expected to have finished reduction'. {fix}, or set DDPFIX_LAYERDROP=off"
    )


def user_choice(arguments: Dict[str, Any]) -> Optional[bool]:
    """Return the user's value: as reported by the toolkit that builds the model, else the argument if there is one."""
    known, value = wrap_hooks.user_choice()
    return value if known else arguments.get(FLAG)


def _named(skipping: Any) -> str:
    shown = [f"{type(module).__name__} (rate {rate:g})" for _, module, rate in skipping]
    unique = list(dict.fromkeys(shown))
    return ", ".join(unique[:4]) + (" and others" if len(unique) > 4 else "")
