"""The options that several commands have in common: the settings, and removed options."""

from __future__ import annotations

import argparse
from typing import Any, List, Sequence

from ddpfix import _env
from ddpfix.matrix import gone
from ddpfix.matrix.settings import PREFIX, SETTINGS, Setting


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting to the parser of a command."""
    group = parser.add_argument_group("settings", "each is an environment variable and a key in pyproject.toml as well")
    for setting in SETTINGS:
        text = f"{setting.meaning} (default: {setting.default}; {setting.variable})"
        option: Any = group.add_argument(f"--{setting.name}", metavar=_values(setting), help=text.replace("%", "%%"))
        # For a shell that completes words.
        option.completer = _Words(setting.values)


def add_gone(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that a command had in an earlier release; none is shown."""
    for option, key in gone.options(command):
        # The value of a removed one, if any follows, is read over.
        now = gone.RENAMED.get(key, "")[len(PREFIX) :].lower()
        nargs = None if now else "?"
        parser.add_argument(option, nargs=nargs, action=_Gone, key=key, dest=now or key, help=argparse.SUPPRESS)


class _Gone(argparse.Action):
    """Answers an option with the line of its key in a table of ``gone``; a renamed one sets what its new name does."""

    def __init__(self, *names: Any, key: str, **keywords: Any) -> None:
        super().__init__(*names, **keywords)
        self._key = key

    def __call__(self, parser: object, namespace: object, values: object, option_string: object = None) -> None:
        _env.say(gone.answer(self._key, str(option_string)))
        if self._key in gone.RENAMED:
            setattr(namespace, self.dest, values)


class _Words:
    """Gives argcomplete the values of a setting."""

    def __init__(self, values: Sequence[str]) -> None:
        self._values = list(values)

    def __call__(self, **asked: object) -> List[str]:
        return self._values


def _values(setting: Setting) -> str:
    # argparse up to Python 3.12 fails to wrap a usage with parentheses in it.
    kind = [] if setting.kind is None else [setting.kind.partition(" (")[0].upper().replace(" ", "_")]
    return "{" + ",".join([*setting.values, *kind]) + "}"
