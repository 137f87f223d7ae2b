"""An override of a key that the yaml does not have: an error that names what was typed, and similar keys."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Sequence

from ddpfix.patching.site import Site

from .overrides_yaml import hint

# What the last command line held: the names of its overrides, and those of the release's run options.
_TYPED: Dict[str, List[str]] = {"overrides": [], "options": []}


class UnknownOverride(KeyError):
    """A KeyError, as hyperpyyaml raises it, whose text is readable."""

    def __str__(self) -> str:
        return str(self.args[0])


def install(site: Site) -> None:
    """Wrap what hyperpyyaml calls when it has loaded yaml and overrides."""
    home = sys.modules.get("hyperpyyaml.core")
    if hasattr(home, "recursive_update"):
        site.wrap(home, "recursive_update", _updated)
        site.at_undo(lambda: remember([], []))


def remember(overrides: Sequence[str], options: Sequence[str]) -> None:
    """Note what a command line held."""
    _TYPED["overrides"], _TYPED["options"] = list(overrides), list(options)


def _updated(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except KeyError as error:
        known, given = ([*args, None, None])[:2]
        names = [name for name in given or () if name not in known and name in _TYPED["overrides"]]
        if not names or isinstance(error, UnknownOverride):
            raise
        raise UnknownOverride(_message(names[0], [str(key) for key in known])) from None


def _message(name: str, keys: Sequence[str]) -> str:
    close = hint(name, [*keys, *_TYPED["options"]], "--")
    return f"--{name}: neither the yaml nor this release's run options have it{close} (the yaml has: {', '.join(keys)})"
