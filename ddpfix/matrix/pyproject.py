"""The table ``[tool.ddpfix]`` of a project's pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Mapping


def table(folder: Path) -> Mapping[str, object]:
    """The table, empty where there is none; raises ValueError, with the file, for one that cannot be read."""
    file = folder / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    # Most projects have no settings of ours: their file is not parsed, and errors in it are not reported.
    if "tool.ddpfix" not in text:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found = tomllib.loads(text).get("tool", {}).get("ddpfix", {})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: [tool.ddpfix] has to be a table")
    return found
