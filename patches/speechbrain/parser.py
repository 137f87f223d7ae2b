"""The release's own parser: which run options it has, and how many words each of them takes."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Dict, NoReturn, Optional

from ddpfix.patching.site import PatchError

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
ACCEPTED = "true and false (also yes, no, on, off, 1, 0)"


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

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


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
    if not isinstance(owner, ModuleType):
        create = getattr(owner, "_create_parser", None)
        if create is None:
            raise PatchError(f"{owner!r} builds no parser")
        made: argparse.ArgumentParser = create()
        return made
    original = inspect.unwrap(owner.__dict__["parse_arguments"])
    if not isinstance(original, FunctionType):
        raise PatchError(f"parse_arguments is a {type(original).__name__}, not a plain function")
    # The function itself, on globals of its own: nothing that other code sees is changed.
    seen = {**original.__globals__, "argparse": SimpleNamespace(**{**vars(argparse), "ArgumentParser": _Catching})}
    try:
        FunctionType(original.__code__, seen)(["hyperparams.yaml"])
    except _Caught as caught:
        return caught.parser
    raise PatchError("parse_arguments does not use argparse")


def options(parser: argparse.ArgumentParser) -> Dict[str, Option]:
    """Return the parser's options, by name."""
    by_name: Dict[str, Option] = {}
    for action in parser._actions:
        for text in action.option_strings:
            if text.startswith("--"):
                by_name[text[2:]] = _option(text[2:], action)
    return by_name


def _option(name: str, action: argparse.Action) -> Option:
    if action.nargs == 0:
        return Option(name, "flag")
    if action.type is bool:
        # bool("False") is True, so that the release takes any word for True (0.5.4; compile_using_* from 0.5.16 on).
        return Option(name, "flag", bare=False)
    return Option(name, "one" if action.nargs is None else "many")


def truth(word: Any) -> Optional[bool]:
    """Return the truth value that a word means, or None."""
    return _TRUTH.get(str(word).strip().lower())


def fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """End as the release's parser ends for what it does not accept: with exit code 2 and the reason."""
    parser.exit(2, f"{parser.prog}: error: {message}\n")
    raise SystemExit(2)
