"""A report in a console or a cell of a notebook: what was applied, what was left, why."""

from __future__ import annotations

from typing import Dict

import ddpfix
from ddpfix.patching.report import PatchReport, Report
from ddpfix.state import State


def report_of(states: Dict[str, State], reason: str = "a reason") -> Report:
    entries = [PatchReport(id, id.partition(".")[0], "1.2", state, reason, True) for id, state in states.items()]
    return Report("9.9", True, {"kit": "1.2"}, {"log": "info"}, entries, ["a note"])


def test_what_was_applied_and_left_is_in_a_few_lines() -> None:
    states = {"kit.a": State.APPLIED, "kit.b": State.ARMED, "kit.c": State.OFF, "kit.d": State.SKIP}
    text = repr(report_of({**states, "other.a": State.ABSENT, "other.b": State.ABSENT}))
    assert text.splitlines() == [
        "ddpfix 9.9: 1 fix in use for kit 1.2; 1 left out (a reason) (python -m ddpfix plan)",
        "  1 skip: left out: this release was not tested",
        "      kit.d",
        "  1 applied: in place",
        "      kit.a",
        "  1 armed: waits for its target to be imported",
        "      kit.b",
        "  1 off: not asked for",
        "      kit.c",
        "  not installed: other",
        "  a note",
    ]


def test_a_report_is_iterated_over_its_patches() -> None:
    report = report_of({"kit.a": State.APPLIED, "kit.b": State.OFF})
    assert [each.id for each in report] == ["kit.a", "kit.b"] and list(report) == report.patches
    # A report without patches is true all the same.
    assert Report("1.0.0", False)


def test_a_long_report_fits_into_a_cell() -> None:
    """All fixes of the project, in any state: not more lines than a screen has."""
    ids = [entry.id for entry in real().patches]
    assert len(ids) > 60
    text = repr(report_of({id: list(State)[number % 8] for number, id in enumerate(ids)}))
    assert len(text.splitlines()) <= 30 and max(map(len, text.splitlines()[1:])) <= 120
    everything = repr(report_of(dict.fromkeys(ids, State.APPLIED)))
    shown = [word.rstrip(",") for word in everything.split() if word.rstrip(",") in ids]
    assert f"and {len(ids) - len(shown)} more" in everything and len(shown) > 5


def real() -> Report:
    ddpfix.activate(log="off")
    try:
        return ddpfix.report()
    finally:
        ddpfix.deactivate()


def test_a_report_without_an_activation_says_how_to_switch_on() -> None:
    ddpfix.deactivate()
    line = f"ddpfix {ddpfix.__version__} is not active: import ddpfix.auto, or DDPFIX=1"
    assert repr(ddpfix.report()) == line
