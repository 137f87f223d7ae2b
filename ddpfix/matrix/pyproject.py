"""The table ``[tool.ddpfix]`` of a project's pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Mapping


def table(folder: Path) -> Mapping[str, object]:
    """Return the table, empty where there is none; raise ValueError, with the file, for one that cannot be read."""
    file = folder / "pyproject.toml"
    try:
        # A pipe of that name would be waited for.
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
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
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as error:
        # Of the latter kinds are numbers with thousands of digits, and deep nesting.
        raise ValueError(f"{file}: {error}") from None
    # Another tool's business is none of ours.
    found = tool.get("ddpfix", {}) if isinstance(tool, dict) else {}
    if not isinstance(found, dict):
        raise ValueError(f"{file}: [tool.ddpfix] must be a table")
    return found


def as_text(value: object) -> str:
    """Return a value as it would stand in the environment; raise ValueError for a list or a table.

    A hexadecimal number may be longer than Python writes one: that is a ValueError as well.
    """
    if isinstance(value, (list, dict)):
        raise ValueError("expected a text or a number")
    return str(value).lower() if isinstance(value, bool) else str(value)
