"""Records the user's value of ``find_unused_parameters`` before Trainer and accelerate lose it.

Trainer turns an unset value into its own True or False. accelerate passes on only what differs from its defaults, so
an explicit False arrives at DDP as no keyword at all.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Optional

from ddpfix.models import wrap_hooks
from ddpfix.models.identity import ByIdentity
from ddpfix.patching.site import Site

FLAG = "find_unused_parameters"
# What the user gave a handler of accelerate's, for as long as it lives, whatever the activation: the flag for DDP, or
# True for a time limit. It is a dataclass that compares by value, and whose every attribute is passed on to torch.
GIVEN: ByIdentity[Optional[bool]] = ByIdentity()


def trainer(site: Site, module: ModuleType, owner: Any) -> None:
    """Note ``TrainingArguments.ddp_find_unused_parameters`` (None: not set) on the handler that Trainer makes."""
    site.wrap(owner, "_wrap_model", _model_wrapped)


def trainer_arguments(site: Site, module: ModuleType, owner: Any) -> None:
    """The same where Trainer makes its handler in a method of its own."""
    site.wrap(owner, "_build_accelerator_args", _arguments_built)


def accelerate(site: Site, module: ModuleType, owner: Any) -> None:
    """Report the user's value in ``DistributedDataParallelKwargs`` while accelerate wraps the model."""
    site.wrap(owner, "prepare_model", _prepared)


def accelerate_handler(site: Site, module: ModuleType, owner: Any) -> None:
    site.wrap(owner, "__init__", _handler_made)


def _arguments_built(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    built = wrapped(*args, **kwargs)
    for handler in built.get("kwargs_handlers") or ():
        if hasattr(handler, FLAG):
            GIVEN[handler] = instance.args.ddp_find_unused_parameters
    return built


def _model_wrapped(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    user_value = instance.args.ddp_find_unused_parameters
    # Up to 4.29 the model is wrapped in this call, later by accelerate with the handler that this call made.
    with wrap_hooks.user_chose(user_value):
        model = wrapped(*args, **kwargs)
    handler = getattr(getattr(instance, "accelerator", None), "ddp_handler", None)
    if handler is not None:
        GIVEN[handler] = user_value
    return model


def _handler_made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    if FLAG in kwargs:
        GIVEN[instance] = bool(kwargs[FLAG])


def _prepared(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with wrap_hooks.user_chose(GIVEN.get(getattr(instance, "ddp_handler", None))):
        return wrapped(*args, **kwargs)
