"""Time limits that the user gives to accelerate and Trainer reach the process group (accelerate issue 2236).

``InitProcessGroupKwargs.to_kwargs`` leaves out what equals its default: half an hour below 0.31, in place of which NCCL
takes torch's ten minutes. Where the group is up already, every release leaves the limit out without a word.
``TrainingArguments(ddp_timeout=...)`` has the second fault, and from 4.29 on does not reach a group on CPUs at all (in
4.29 and 4.30 on GPUs neither).

A limit only becomes longer here: a rank that is waited for today may be one for which a shorter limit would not wait.
A limit that cannot be put in force is named, with the line that works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from datetime import timedelta
from types import ModuleType
from typing import Any, Callable, ContextManager, Optional

from ddpfix import log
from ddpfix.groups import timeouts
from ddpfix.patching import temporary
from ddpfix.patching.site import Site

from .intent import GIVEN

# Seconds: what torch gives a group of which nothing is said; NCCL gets less since 2.2.
_LONGEST_DEFAULT = 1800


def accelerate_handler(site: Site, module: ModuleType, owner: Any) -> None:
    """Note that the user gave ``InitProcessGroupKwargs`` a time limit."""
    site.wrap(owner, "__init__", _handler_made)


def accelerate_kwargs(site: Site, module: ModuleType, owner: Any) -> None:
    """Pass the user's time limit on where it equals the default."""
    site.wrap(owner, "to_kwargs", _passed_on)


def accelerate(site: Site, module: ModuleType, owner: Any) -> None:
    """Compare the user's time limit with the group's when an ``Accelerator`` is made."""
    site.wrap(owner, "__init__", _accelerator_made)


def trainer(site: Site, module: ModuleType, owner: Any) -> None:
    """Tell a new group ``ddp_timeout`` (accelerate makes it from 4.29 on), and compare it with the group's limit."""

    def made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        with _told(getattr(module, "PartialState", None), _ddp_timeout(instance)):
            _arguments_made(wrapped, instance, args, kwargs)

    site.wrap(owner, "__post_init__", made)


def _handler_made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    # backend, init_method, timeout
    if (args[2] if len(args) > 2 else kwargs.get("timeout")) is not None:
        GIVEN[instance] = True


def _passed_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if GIVEN.get(instance):
        result.setdefault("timeout", instance.timeout)
    return result


def _accelerator_made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    was_up = timeouts.group_is_up()
    wrapped(*args, **kwargs)
    handler: Any = getattr(instance, "init_handler", None)
    if GIVEN.get(handler) and isinstance(handler.timeout, timedelta):
        seconds = handler.timeout.total_seconds()
        _compare(seconds, f"InitProcessGroupKwargs(timeout=timedelta(seconds={seconds:g}))", was_up)


def _arguments_made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    was_up = timeouts.group_is_up()
    wrapped(*args, **kwargs)
    seconds = _ddp_timeout(instance)
    if seconds is not None:
        _compare(seconds, f"TrainingArguments(ddp_timeout={seconds:g})", was_up)


def _ddp_timeout(arguments: Any) -> Optional[float]:
    """``ddp_timeout`` in seconds; None for the default, which a parser passes on like a value that was typed."""
    default = next(field.default for field in dataclasses.fields(arguments) if field.name == "ddp_timeout")
    value = arguments.ddp_timeout
    return None if value is None or value == default else float(value)


def _told(state: Optional[type], seconds: Optional[float]) -> ContextManager[None]:
    """While this lasts, accelerate gives a group of which Trainer says nothing this limit, if it is a longer one."""
    if state is None or seconds is None or seconds <= _LONGEST_DEFAULT:
        return contextlib.nullcontext()
    return temporary.replaced(state, "__init__", _with_limit(state.__init__, timedelta(seconds=seconds)))  # type: ignore[misc]


def _with_limit(original: Callable[..., None], limit: timedelta) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("_use_sagemaker_dp"):
            kwargs.setdefault("timeout", limit)
        original(self, *args, **kwargs)

    return init


def _compare(seconds: float, given: str, was_up: bool) -> None:
    """Have the group's time limit be the user's, or say what does it; ``given`` is where he gave it, as code."""
    if not timeouts.group_is_up():
        return
    has = timeouts.shortest()
    log.setting(given, f"{seconds:g} s", "unknown" if has is None else f"{has:g} s")
    if has == seconds or (has is None and not was_up):
        return
    if has is not None and has < seconds and timeouts.lengthen(seconds):
        log.setting(given, f"{seconds:g} s", f"{seconds:g} s", f"the process group had {has:g} s")
        log.once(f"raised the process group's time limit from {has:g} s to {seconds:g} s, as {given} asks")
    else:
        log.warning(_named(seconds, given, has))


def _named(seconds: float, given: str, has: Optional[float]) -> str:
    from torch import distributed

    keeps = "its own time limit" if has is None else f"its time limit of {has:g} s"
    shorter = " (ddpfix does not shorten a limit)" if has is not None and has > seconds else ""
    return (
        f"{given} has no effect: the process group keeps {keeps}{shorter}.\n"
        "Set it where the group is made, before this: torch.distributed.init_process_group("
        f'"{distributed.get_backend()}", timeout=datetime.timedelta(seconds={seconds:g}))'
    )
