"""Undone, torch is what it was."""

from __future__ import annotations

import pytest

from tests.support import undo


@pytest.mark.filterwarnings("ignore")
def test_everything_is_what_it_was() -> None:
    undo.check("torch")
