"""Hooks for the moment at which a model is wrapped for data parallel training."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Registry, Site

# Where a model is wrapped; FSDP runs the hooks as well.
AT = "torch.nn.parallel.distributed:DistributedDataParallel.__init__"

# (what it is for, function of the model), in the order of the matrix.
HOOKS: Registry[Tuple[str, Callable[[Any], Any]]] = Registry(AT)
BEFORE, NOT_REENTRANT, EXCLUDES, ALTERNATIVE = (
    "before it is wrapped",
    "cannot train with reentrant checkpoints",
    "excludes the flag",
    "trains without the flag",
)

# (True, value) while a toolkit wraps a model and we know what its user chose; value None: the user chose nothing.
_USER_CHOICE: ContextVar[Tuple[bool, Optional[bool]]] = ContextVar("ddpfix_user_choice", default=(False, None))


def before_wrap(site: Site, action: Callable[[Any], object]) -> None:
    """Have ``action(model)`` called before DDP or FSDP wraps a model, on every rank."""
    site.register(HOOKS, (BEFORE, action))


def _hooks(purpose: str) -> List[Callable[[Any], Any]]:
    return [hook for each, hook in HOOKS if each == purpose]


def run_before_wrap(model: Any) -> Optional[Exception]:
    """Call everything that registered with :func:`before_wrap`; returns what one of them raised.

    The other ranks have to learn of it before anything is raised, or they would wait for this one.
    """
    try:
        for action in _hooks(BEFORE):
            action(model)
    except Exception as error:
        log.warning(
            f"ddpfix could not inspect the model: {error!r}. Please report this; DDPFIX=0 trains without ddpfix"
        )
        return error
    return None


def not_reentrant(site: Site, action: Callable[[Any], object]) -> None:
    """Have ``action(model)`` called where a model cannot train with reentrant checkpointing, until undo."""
    site.register(HOOKS, (NOT_REENTRANT, action))


def forbid_reentrant(model: Any) -> None:
    """Call everything that registered with :func:`not_reentrant`: DDP has the flag, or layers are sharded."""
    _answers(NOT_REENTRANT, model)


def excludes(site: Site, what: Callable[[Any], str]) -> None:
    """Have ``what(model)`` name what a model has that ``find_unused_parameters=True`` excludes, until undo."""
    site.register(HOOKS, (EXCLUDES, what))


def excluded(model: Any) -> List[str]:
    """Return the traits of a model that ``find_unused_parameters=True`` excludes, as messages."""
    return _answers(EXCLUDES, model)


def _answers(purpose: str, model: Any) -> List[str]:
    found = []
    for hook in _hooks(purpose):
        try:
            found.append(hook(model))
        except Exception as error:
            # An error here is no reason to end the job: it goes on as without ddpfix.
            log.warning(f"{hook.__module__} could not inspect a {type(model).__name__}: {error!r}")
    return [text for text in found if text]


def replaces_flag(site: Site, possible: Callable[[Dict[str, Any]], bool]) -> None:
    """Have ``possible(arguments)`` say whether a model can train without the flag whatever it leaves unused."""
    site.register(HOOKS, (ALTERNATIVE, possible))


def can_replace_flag(arguments: Dict[str, Any]) -> bool:
    """Return whether a model with these arguments of DDP can train without the flag."""
    return any(possible(arguments) for possible in _hooks(ALTERNATIVE))


def user_chose(value: Optional[bool]) -> ContextManager[None]:
    """Set what the user chose for ``find_unused_parameters`` through the toolkit (None: nothing).

    Toolkits pass their own default on as a keyword, or drop an explicit False on the way: at DDP the two look alike.
    """
    return temporary.assigned(_USER_CHOICE, (True, value))


def user_choice() -> Tuple[bool, Optional[bool]]:
    """(known, value): whether a toolkit has passed on its user's choice, and what it is."""
    return _USER_CHOICE.get()
