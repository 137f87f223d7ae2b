"""Options that take True or False (``--use_lora False``): argparse makes ``bool("False")`` of it, which is True."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

from ddpfix.patching.site import Site

from . import values


def read(site: Site, module: ModuleType, owner: Any) -> None:
    """The target's last name is a function that adds options to a parser and returns it."""
    for name in ("add_lora_args", "add_fsdp_args"):
        site.wrap(module, name, _added)


def _added(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    parser = wrapped(*args, **kwargs)
    for action in parser._actions:
        if action.type is bool:
            action.type = _truth
    return parser


def _truth(text: str) -> bool:
    """Return the truth of a text; an empty one stays what it was, False."""
    value = values.truth(text) if text else False
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false. Use one of {values.TRUTHS}")
    return value
