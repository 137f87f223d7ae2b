"""A rank that does not answer, and how its process is."""

from __future__ import annotations

from typing import NamedTuple, Optional

from ddpfix.ranks.groups.work import Work

# How such a rank is; :mod:`.words` tells it.
GONE, STOPPED, TRACED, LEFT, SILENT = "gone", "stopped", "traced", "left", "silent"


class Absent(NamedTuple):
    """A rank that does not answer.

    Attributes:
        how: one of those above.
        text: its process, in words.
        step: where it has ended, if it has said so.
        hint: how its process has ended, in a sentence.
        work: what it has done, if it has said so.
    """

    rank: int
    how: str
    text: str
    step: Optional[int] = None
    hint: str = ""
    work: Work = Work()
