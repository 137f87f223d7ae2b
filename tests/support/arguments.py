"""Writes the keywords of ``ddpfix.activate`` with their types: python -m tests.support.arguments."""

from __future__ import annotations

import sys
from pathlib import Path

from ddpfix.matrix import loader
from ddpfix.matrix.settings import SETTINGS, Setting

FILE = Path(__file__).resolve().parents[2] / "ddpfix" / "matrix" / "arguments.py"
_HEAD = '''"""The keywords of ``ddpfix.activate`` for type checkers: written by python -m tests.support.arguments."""

from __future__ import annotations

import os
from typing import Literal, TypedDict, Union

# 0 leaves a patch out, 1 asks for one that is off by default, force applies it to a release that was not tested.
Switch = Union[bool, Literal["0", "1", "force", 0, 1]]


class Arguments(TypedDict, total=False):
    """The settings, and by the ids of the patches (dots are underscores) their switches."""

'''


def text() -> str:
    """The whole file."""
    settings = [f"    {each.name}: {_kind(each)}\n" for each in SETTINGS]
    switches = [f"    {patch.replace('.', '_')}: Switch\n" for patch in loader.load().patches]
    return _HEAD + "".join([*settings, *switches])


def _kind(setting: Setting) -> str:
    words = ", ".join(f'"{value}"' for value in setting.values)
    if setting.check is not None:
        return "Union[int, float, str]" if setting.name != "trace" else "Union[str, os.PathLike[str]]"
    if setting.values == ("0", "1"):
        return 'Literal["0", "1", 0, 1]'
    return f"Literal[{words}]"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
