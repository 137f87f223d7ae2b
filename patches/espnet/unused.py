"""``--unused_parameters``: what its user typed stands, and its default is no choice of theirs.

ESPnet hands ``find_unused_parameters=False`` to DDP where nobody has chosen anything, which looks like a choice there:
a model that skips layers, or has a branch without a gradient, then ends with "Expected to have finished reduction".
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from types import ModuleType
from typing import Any, Optional, Sequence

import yaml

from ddpfix.models import wrap_hooks
from ddpfix.patching.site import PatchError, Site

_OPTION = "unused_parameters"


def arrive(site: Site, module: ModuleType, owner: Any) -> None:
    """Wrap ``AbsTask.main_worker``, in which a rank builds its model, wraps and trains it."""
    if not callable(getattr(owner, "main_worker", None)):
        raise PatchError(f"{owner.__qualname__} has no main_worker")
    site.wrap(owner, "main_worker", _trains)


def _trains(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    given: Any = args[0] if args else kwargs.get("args")
    with wrap_hooks.user_chose(chosen(given, sys.argv[1:])):
        return wrapped(*args, **kwargs)


def chosen(args: argparse.Namespace, words: Sequence[str]) -> Optional[bool]:
    """Return what the user chose for the option; None where nothing was chosen."""
    value = bool(getattr(args, _OPTION, False))
    typed = any(word.partition("=")[0] == f"--{_OPTION}" for word in words)
    return value if value or typed or _OPTION in _config(getattr(args, "config", None)) else None


def _config(path: Any) -> Any:
    """Return what the configuration of a task holds, which ESPnet reads in the same way."""
    with contextlib.suppress(OSError, TypeError, yaml.YAMLError):
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
        return found if isinstance(found, dict) else {}
    return {}
