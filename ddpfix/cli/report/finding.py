"""One finding of a report: a sentence about one part of the page, and what follows from it."""

from __future__ import annotations

from typing import NamedTuple, Sequence

# What a finding means for the reader: to be looked at, fine, or neither.
BAD, GOOD, PLAIN = "attention", "good", "plain"


class Finding(NamedTuple):
    """One sentence about one subject.

    Attributes:
        subject: also the name of a part of the page.
        lines: what stands below it, ``cause: ...`` or ``advice: ...``; code to paste follows after a line break.
    """

    subject: str
    level: str
    text: str
    lines: Sequence[str] = ()
