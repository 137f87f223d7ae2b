"""The question that a misspelt word leads to."""

from __future__ import annotations

from typing import Iterable


def near(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean ...?" with the known words that come nearest to a word; empty where none is near.

    Args:
        word: as it was written.
        known: the words.
        prefix: what all of them begin with, which makes none of them near.
    """
    # Its import would take a tenth of the time of waking up.
    import difflib

    close = difflib.get_close_matches(word[len(prefix) :], [name[len(prefix) :] for name in known], n=3)
    return f"; did you mean {', '.join(prefix + name for name in close)}?" if close else ""
