"""What the fixes for FunASR's trainers share: the arguments of an epoch, under the names of all releases."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ContextManager, Dict, Tuple

from ddpfix import log
from ddpfix.patching import temporary
from ddpfix.patching.site import PatchError


@dataclass(frozen=True)
class Given:
    """What one call of ``train_epoch`` or ``validate_epoch`` works on; before 1.0.18 the trainer held it itself."""

    trainer: Any
    model: Any
    optim: Any
    scaler: Any


def epoch_of(wrapped: Any, trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Given:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    parts = (given[name] if name in given else getattr(trainer, name, None) for name in ("model", "optim", "scaler"))
    return Given(trainer, *parts)


def method(owner: Any, name: str) -> str:
    """``train_epoch``, or with the underscore that it had before 1.0.18."""
    for candidate in (name, "_" + name):
        if candidate in vars(owner):
            return candidate
    raise PatchError(f"{owner.__qualname__} has no {name}")


def report(trainer: Any, message: str) -> None:
    """A line once a trainer: an epoch may be one of hundreds of data slices."""
    log.once(message, trainer)


def sharded(trainer: Any) -> bool:
    """Return whether several ranks train together."""
    return bool(getattr(trainer, "use_ddp", False) or getattr(trainer, "use_fsdp", False))


def seen_by(module: ModuleType, name: str, **names: Any) -> ContextManager[None]:
    """While this lasts, the global ``name`` of ``module`` (a module itself) has ``names`` instead of its own."""
    return temporary.replaced(module, name, temporary.LookAlike(vars(module)[name], names))
