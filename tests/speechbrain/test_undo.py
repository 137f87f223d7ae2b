"""Undo gives back every object of the release that was there, and leaves nothing behind."""

from __future__ import annotations

from tests.support import undo


def test_everything_is_what_it_was() -> None:
    undo.check("speechbrain")
