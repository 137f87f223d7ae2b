"""Real trees of WeNet are found through TEST_WENET; where there is none, one line says how to provide them."""

from __future__ import annotations

from typing import Any

from tests.wenet import trees

collect_ignore = ["stand_ins"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    missing = [tag for tag in trees.TAGS if tag not in trees.available()]
    if missing:
        terminalreporter.write_line(f"NOT RUN on WeNet {', '.join(missing)}: {trees.HOW}", yellow=True, bold=True)
