"""The options that several commands have in common: the settings."""

from __future__ import annotations

import argparse
from typing import Any, List, Sequence

from ddpfix.matrix.settings import SETTINGS, Setting


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting to the parser of a command."""
    group = parser.add_argument_group("settings", "each is an environment variable and a key in pyproject.toml as well")
    for setting in SETTINGS:
        text = f"{setting.meaning} (default: {setting.default}; {setting.variable})"
        option: Any = group.add_argument(f"--{setting.name}", metavar=_values(setting), help=text.replace("%", "%%"))
        # For a shell that completes words.
        option.completer = _Words(setting.values)


class _Words:
    """Gives argcomplete the values of a setting.

    Args:
        values: those that have a name.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self._values = list(values)

    def __call__(self, **asked: object) -> List[str]:
        return self._values


def _values(setting: Setting) -> str:
    # argparse up to Python 3.12 fails to wrap a usage with parentheses in it.
    kind = [] if setting.kind is None else [setting.kind.partition(" (")[0].upper().replace(" ", "_")]
    return "{" + ",".join([*setting.values, *kind]) + "}"
