"""The release's own parser: which run options it has, and how many words each of them takes."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Dict, NoReturn, Optional

from ddpfix.patching.site import PatchError

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
ACCEPTED = "true or false (or yes, no, on, off, 1, 0)"


@dataclass(frozen=True)
class Option:
    """A run option.

    Attributes:
        name: without dashes; also the key in the run options.
        kind: "flag" (a truth value, True where none is given), "one" (takes a word), "many" (takes all words).
        real: whether the release's parser has it; ours alone otherwise.
        bare: whether the release's parser takes the flag without a value.
    """

    name: str
    kind: str
    real: bool = True
    bare: bool = True


class _Caught(Exception):
    """Carries the parser out of the function that builds it."""


class _Catching(argparse.ArgumentParser):
    def parse_known_args(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _Caught(self)


def of(owner: Any) -> argparse.ArgumentParser:
    """Return the parser that a release builds.

    Args:
        owner: the module with ``parse_arguments`` (before 1.1.0), or the class ``RunOptions``.

    Raises:
        PatchError: it does not build one in a way that we know.
    """
    try:
        made = _caught(owner) if isinstance(owner, ModuleType) else owner._create_parser()
    except AttributeError as error:
        raise PatchError(f"{owner!r} builds no parser: {error}") from None
    if not isinstance(made, argparse.ArgumentParser):
        raise PatchError("parse_arguments does not use argparse")
    return made


def _caught(owner: ModuleType) -> Any:
    original = inspect.unwrap(owner.__dict__["parse_arguments"])
    # The function itself, on globals of its own: nothing that other code sees is changed.
    seen = {**original.__globals__, "argparse": SimpleNamespace(**{**vars(argparse), "ArgumentParser": _Catching})}
    try:
        return FunctionType(original.__code__, seen)(["hyperparams.yaml"])
    except _Caught as caught:
        return caught.args[0]


def options(parser: argparse.ArgumentParser) -> Dict[str, Option]:
    """Return the parser's options, by name."""
    named = [(text[2:], action) for action in parser._actions for text in action.option_strings if text[:2] == "--"]
    return {name: _option(name, action) for name, action in named}


def _option(name: str, action: argparse.Action) -> Option:
    # bool("False") is True, so that the release takes any word for True (compile_using_* from 0.5.16 on).
    if action.nargs == 0 or action.type is bool:
        return Option(name, "flag", bare=action.nargs == 0)
    return Option(name, "one" if action.nargs is None else "many")


def truth(word: Any) -> Optional[bool]:
    """Return the truth value that a word means, or None."""
    return _TRUTH.get(str(word).strip().lower())
