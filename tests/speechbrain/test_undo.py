"""Undo gives back every object of the release that was there, and leaves nothing behind."""

from __future__ import annotations

import ddpfix
from tests.support import undo


def test_everything_is_what_it_was() -> None:
    modules = undo.targets("speechbrain")
    missing = undo.imported(modules)
    assert len(missing) < len(modules) / 4, missing
    packages = ("speechbrain", "torch")
    before = undo.snapshot(*packages)
    ddpfix.activate(log="warning")
    try:
        report = ddpfix.report()
        applied = [patch.id for patch in report.patches if patch.toolkit == "speechbrain" and patch.state == "applied"]
        assert len(applied) > 3, report.json()
        assert undo.changed(before, undo.snapshot(*packages))
    finally:
        ddpfix.deactivate()
    assert undo.changed(before, undo.snapshot(*packages)) == []
