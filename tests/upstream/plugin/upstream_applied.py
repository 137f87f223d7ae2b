"""A plugin of pytest for the suites of toolkits: how each test ended, and which patches of ddpfix were applied."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

_FOUND: Dict[str, List[Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or not report.passed:
        text = "" if report.passed else report.longreprtext[-3000:]
        _FOUND[report.nodeid] = [report.outcome, round(report.duration, 2), text]


def pytest_collectreport(report: Any) -> None:
    if not report.passed:
        _FOUND[report.nodeid] = [report.outcome, 0.0, report.longreprtext[-3000:]]


def pytest_sessionfinish() -> None:
    """Each process says what was applied in it; the one that has started the workers, how tests ended."""
    folder, engine = Path(os.environ["UPSTREAM_FOLDER"]), sys.modules.get("ddpfix.engine")
    if engine is not None:
        applied = [patch.id for patch in engine.report().patches if patch.state in ("applied", "registered")]
        (folder / f"{os.getpid()}.applied").write_text("\n".join(applied), encoding="utf-8")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        (folder / "found.json").write_text(json.dumps(_FOUND), encoding="utf-8")
