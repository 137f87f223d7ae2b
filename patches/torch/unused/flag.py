"""``find_unused_parameters=True`` reaches DDP where the model needs it and the user has not chosen otherwise.

A model that skips layers leaves their parameters without gradient; DDP then fails in the next forward (pytorch issue
90171, speechbrain 2340, transformers 17116).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

from ddpfix import log
from ddpfix.layerdrop import cover
from ddpfix.models import wrap_hooks
from ddpfix.patching.site import Registry, Site
from ddpfix.user_code import package_that_calls, whose

from ..internals.wrapper import rebuild
from ..pipeline import ddp

FLAG = "find_unused_parameters"
# possible(arguments): whether a model can train without the flag whatever it leaves unused (see :mod:`.finalizer`).
FLAG_ALTERNATIVES: Registry[Callable[[Dict[str, Any]], bool]] = Registry(wrap_hooks.AT)


# Kinds of devices on which the flag is the slower of the two ways: with it torch copies a bitmap to the host in each
# step that leaves something out, and the host waits for the whole backward. `python -m tests.gpu` measures it; a kind
# stands here when its table in docs/costs.md says so. On CPUs there is nothing to copy.
SLOWER_ON: FrozenSet[str] = frozenset()


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
        elif _decide(call.arguments, self._mode == "find"):
            call.facts["flag is ours"] = self._mode != "find" and not call.arguments.get(FLAG)
            call.arguments[FLAG] = True
        log.setting(FLAG, requested, bool(call.arguments.get(FLAG)), self._note(call.arguments))

    def _note(self, arguments: Dict[str, Any]) -> str:
        if arguments.get("static_graph"):
            return "static_graph=True"
        return "" if self._mode == "auto" else f"DDPFIX_UNUSED={self._mode}"

    def built(self, model: ddp.Wrapped, call: Optional[ddp.Call]) -> None:
        model.flag_is_ours = call is not None and call.facts.get("flag is ours", False)

    def hook(self, model: ddp.Wrapped, state: Any, hook: Any) -> None:
        if model.flag_is_ours and getattr(hook, "__name__", "") in _EXCLUDED_HOOKS:
            _unset_flag(model, hook.__name__)


# Hooks that start further collectives, which interleave with the one of DDP's bitmap of used parameters: ranks may wait
# for ever (gloo does), in plain torch as well.
_EXCLUDED_HOOKS = ("powerSGD_hook", "batched_powerSGD_hook")


def _unset_flag(model: ddp.Wrapped, hook: str) -> None:
    """Rebuild DDP's reducer without the flag, as DDP does for a copy, if the model can train without it."""
    wrapper = model.wrapper
    if not any(possible({}) for possible in FLAG_ALTERNATIVES):
        return
    model.flag_is_ours = wrapper.find_unused_parameters = False
    rebuild(wrapper)
    ddp.rebuild_stages(model)
    log.info(
        f"{FLAG} is taken back: {hook} and the flag may make ranks wait for each other for ever. What goes unused is"
        " marked as ready after each backward"
    )


def _may_be_static(model: Any) -> bool:
    skipping = _skipping(model, decided=True)
    if skipping:
        log.warning(
            f"DDPFIX_UNUSED=static cannot work with LayerDrop ({_named(skipping)}): {FLAG} is chosen as by auto"
        )
    return not skipping


def _decide(arguments: Dict[str, Any], always: bool) -> bool:
    """Return whether to set the flag to True."""
    user_value = user_choice(arguments)
    skipping = _skipping(arguments["module"], bool(arguments.get("static_graph")) or user_value is not None)
    idle = wrap_hooks.reasons(arguments["module"])
    if not skipping and not idle and not always:
        return _was_dropped(arguments)
    names = _named(skipping)
    if arguments.get("static_graph"):
        # A static graph accepts parameters that are unused in every step.
        if skipping:
            log.warning(f"static_graph=True cannot work with LayerDrop ({names}): set the rate to 0, or leave it out")
        return False
    if user_value is not None:
        if not user_value and (skipping or idle):
            _warn(names, idle)
        # A toolkit may drop its user's setting before it builds DDP.
        return user_value
    reasons = ([f"{names} skips layers"] if names else []) + idle
    against = "" if always else _against(arguments)
    if against and any(possible(arguments) for possible in FLAG_ALTERNATIVES):
        log.info(
            f"{FLAG} is left out: {against}. {'; '.join(reasons)}: reductions are"
            " finalized after each backward (DDPFIX_UNUSED=find takes the flag)"
        )
        return False
    if not arguments.get(FLAG):
        log.info(
            f"{FLAG}=True: {'; '.join(reasons) or 'DDPFIX_UNUSED=find'}. torch's warning 'did not find any unused"
            " parameters' is about a step that leaves none out"
        )
    return True


def _against(arguments: Dict[str, Any]) -> str:
    """Return what speaks against the flag for a model; "" where nothing does."""
    module = arguments["module"]
    excluding = wrap_hooks.excluded(module)
    if excluding:
        return f"{', '.join(excluding)} excludes it"
    if arguments.get(FLAG):
        return ""
    device = next((parameter.device.type for parameter in module.parameters()), "")
    return f"on {device} the host would wait for each backward to look for them" if device in SLOWER_ON else ""


def _was_dropped(arguments: Dict[str, Any]) -> bool:
    """Return whether the user has typed True, and the toolkit has lost it before it builds DDP."""
    if wrap_hooks.user_choice() != (True, True) or arguments.get("static_graph") or arguments.get(FLAG):
        return False
    log.info(f"{FLAG}=True: it was given to the toolkit, which does not hand it on")
    return True


def _skipping(model: Any, decided: bool) -> List[Tuple[str, Any, float]]:
    """Return the modules that skip layers for whose gradients DDP would wait; it waits for none of a frozen layer."""
    found = (entry for entry in cover.active(model) if _trainable(entry[1]))
    return [entry for entry in found if cover.needs_flag(entry[1], decided)]


def _trainable(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _warn(names: str, idle: List[str]) -> None:
    why = "; ".join(([f"with LayerDrop active in {names}"] if names else []) + idle)
    package = "" if wrap_hooks.user_choice()[0] else package_that_calls()
    fix = f"Have {package} hand over True" if package else "Leave it out"
    fix += ", or set DDPFIX_LAYERDROP=off." if names and not idle else "."
    log.warning(
        f"{FLAG}=False is {whose(package)} and stays; {why}, the next step raises 'Expected to have finished"
        f" reduction'. {fix}"
    )


def user_choice(arguments: Dict[str, Any]) -> Optional[bool]:
    """Return the user's value: as reported by the toolkit that builds the model, else the argument if there is one."""
    known, value = wrap_hooks.user_choice()
    return value if known else arguments.get(FLAG)


def _named(skipping: Any) -> str:
    shown = [f"{type(module).__name__} (rate {rate:g})" for _, module, rate in skipping]
    unique = list(dict.fromkeys(shown))
    return ", ".join(unique[:4]) + (" and others" if len(unique) > 4 else "")
