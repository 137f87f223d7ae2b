"""Text on a screen as it may be shown there, wherever it comes from."""

from __future__ import annotations

from rich.text import Text

from ddpfix._env import printable


def plain(text: str, style: str = "") -> Text:
    """Return one line in which nothing is markup or commands the terminal: what is not printable is escaped."""
    return Text(printable(text), style=style)
