"""The lines of the project have a limit: what is added needs room, and a removal lowers the limit."""

from __future__ import annotations

import pytest

from tests.support import ledger

# python -m tests.support.ledger prints what they are.
PRODUCT, TESTS = 29_863, 54_996


@pytest.mark.parametrize(("folders", "most"), [(ledger.PRODUCT, PRODUCT), (("tests",), TESTS)])
def test_lines_stay_within_the_budget(folders: tuple[str, ...], most: int) -> None:
    now = ledger.lines(*folders)
    assert now <= most, f"{now} lines in {' and '.join(folders)}: take away what is no longer needed"


def test_the_ledger_counts_what_is_there() -> None:
    found = dict(ledger.rows())
    parts = [number for name, number in found.items() if name.split("/")[0] in ledger.PRODUCT]
    assert sum(parts) == found["lines of ddpfix and patches"]
    assert found["patches, by id"] > 50 and found["settings"] > 10
    assert 10_000 < found["words of docs written by hand"] <= 35_000, "longer pages are not read"
