"""Hooks for the moment at which a model is wrapped for data parallel training."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable, ContextManager, List, Optional, Tuple

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import Registry, Site

# Where a model is wrapped; FSDP runs the hooks as well.
AT = "torch.nn.parallel.distributed:DistributedDataParallel.__init__"

# Called with the model before DDP or FSDP wraps it, on every rank, in the order of the matrix.
_BEFORE: Registry[Callable[[Any], object]] = Registry(AT)

# The same, after those, only where something waits for the gradient of each parameter: DDP and FSDP do.
_BEFORE_WAITING: Registry[Callable[[Any], object]] = Registry(AT)

# Called with a model that cannot train with reentrant activation checkpointing as it is wrapped.
_NOT_REENTRANT: Registry[Callable[[Any], object]] = Registry(AT)

# what(model) -> what it has that find_unused_parameters=True excludes, or "".
_EXCLUDED: Registry[Callable[[Any], str]] = Registry(AT)

# reason(model) -> why DDP has to look for unused parameters in it, or "" if it has not.
_REASONS: Registry[Callable[[Any], str]] = Registry(AT)

# (True, value) while a toolkit wraps a model and we know what its user chose; value None: the user chose nothing.
_USER_CHOICE: ContextVar[Tuple[bool, Optional[bool]]] = ContextVar("ddpfix_user_choice", default=(False, None))


def before_wrap(site: Site, action: Callable[[Any], object], waiting: bool = False) -> None:
    """Have ``action(model)`` called before a model is wrapped; ``waiting``: where something waits for each gradient."""
    site.register(_BEFORE_WAITING if waiting else _BEFORE, action)


def run_before_wrap(model: Any, waiting: bool = True) -> Optional[Exception]:
    """Call everything that registered with :func:`before_wrap`; returns what one of them raised.

    The other ranks have to learn of it before anything is raised, or they would wait for this one.
    """
    try:
        for action in [*_BEFORE, *(_BEFORE_WAITING if waiting else ())]:
            action(model)
    except Exception as error:
        log.warning(
            f"ddpfix could not inspect the model: {error!r}. Please report this; DDPFIX=0 trains without ddpfix"
        )
        return error
    return None


def not_reentrant(site: Site, action: Callable[[Any], object]) -> None:
    """Have ``action(model)`` called where a model cannot train with reentrant checkpointing, until undo."""
    site.register(_NOT_REENTRANT, action)


def forbid_reentrant(model: Any) -> None:
    """Call everything that registered with :func:`not_reentrant`: DDP has the flag, or layers are sharded."""
    for action in list(_NOT_REENTRANT):
        try:
            action(model)
        except Exception as error:
            log.warning(f"{action.__module__} could not inspect a {type(model).__name__}: {error!r}")


def excludes(site: Site, what: Callable[[Any], str]) -> None:
    """Have ``what(model)`` name what a model has that ``find_unused_parameters=True`` excludes, until undo."""
    site.register(_EXCLUDED, what)


def excluded(model: Any) -> List[str]:
    """Return the traits of a model that ``find_unused_parameters=True`` excludes, as messages."""
    return [text for text in (_answer(what, model) for what in list(_EXCLUDED)) if text]


def needs_flag(site: Site, reason: Callable[[Any], str]) -> None:
    """Have ``reason(model)`` say why a model needs ``find_unused_parameters`` ("": it does not), until undo."""
    site.register(_REASONS, reason)


def reasons(model: Any) -> List[str]:
    """Return why this model needs ``find_unused_parameters``, as messages; empty if there is no known reason."""
    return [text for text in (_answer(reason, model) for reason in list(_REASONS)) if text]


def _answer(reason: Callable[[Any], str], model: Any) -> str:
    try:
        return reason(model)
    except Exception as error:
        # An error here is no reason to end the job: it goes on as without ddpfix.
        log.warning(f"{reason.__module__} could not inspect a {type(model).__name__}: {error!r}")
        return ""


def user_chose(value: Optional[bool]) -> ContextManager[None]:
    """Set what the user chose for ``find_unused_parameters`` through the toolkit (None: nothing).

    Toolkits pass their own default on as a keyword, or drop an explicit False on the way: at DDP the two look alike.
    """
    return temporary.assigned(_USER_CHOICE, (True, value))


def user_choice() -> Tuple[bool, Optional[bool]]:
    """(known, value): whether a toolkit has passed on its user's choice, and what it is."""
    return _USER_CHOICE.get()
