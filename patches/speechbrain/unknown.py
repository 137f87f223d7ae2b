"""An override of a key that the yaml does not have: an error that names what was typed, and similar keys."""

from __future__ import annotations

import functools
import sys
from typing import Any, List, Sequence

from ddpfix.patching.site import Site

from .overrides_yaml import hint


class Typed:
    """What the last command line held.

    Attributes:
        overrides: the names of its overrides.
        options: those of the release's run options.
    """

    def __init__(self) -> None:
        self.overrides: List[str] = []
        self.options: List[str] = []


class UnknownOverride(KeyError):
    """A KeyError, as hyperpyyaml raises it, whose text is readable."""

    def __str__(self) -> str:
        return str(self.args[0])


def install(site: Site) -> None:
    """Wrap what hyperpyyaml calls when it has loaded yaml and overrides."""
    home = sys.modules.get("hyperpyyaml.core")
    if hasattr(home, "recursive_update"):
        site.wrap(home, "recursive_update", functools.partial(_updated, site.keep(Typed)))


def _updated(typed: Typed, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except KeyError as error:
        known, given = ([*args, None, None])[:2]
        names = [name for name in given or () if name not in known and name in typed.overrides]
        if not names or isinstance(error, UnknownOverride):
            raise
        raise UnknownOverride(_message(names[0], [str(key) for key in known], typed.options)) from None


def _message(name: str, keys: Sequence[str], options: Sequence[str]) -> str:
    close = hint(name, [*keys, *options], "--")
    return f"--{name}: neither the yaml nor this release's run options have it{close} (the yaml has: {', '.join(keys)})"
