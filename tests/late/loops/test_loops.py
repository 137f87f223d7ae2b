"""Each training program trains under ddpfix as in plain torch, or exactly, or ends with an error that says why."""

from __future__ import annotations

import re
from typing import Dict

import pytest

from tests.late.loops import kinds, launch
from tests.late.loops.launch import Ranks
from tests.late.loops.loop import MODES, SETTINGS
from tests.late.loops.verdict import as_declared, broken, verdict

pytestmark = pytest.mark.patches("torch.finalize")
KINDS, SAMPLE = kinds.load(), kinds.sample()
SIZES = [
    pytest.param(name, size, marks=pytest.mark.sampled(inside=name in SAMPLE))
    for size in (2, 3)
    for name in KINDS
    if size == 2 or KINDS[name].three
]


class Table:
    """Runs the programs of a theme, or its sample, when the first of them is needed."""

    def __init__(self, factory: pytest.TempPathFactory, whole: bool) -> None:
        self.factory = factory
        self.names = set(KINDS) if whole else SAMPLE
        self.runs: Dict[str, Ranks] = {}

    def of(self, name: str, size: int) -> Dict[str, Ranks]:
        if f"{name}-hand-{size}" not in self.runs:
            names = [other for other in KINDS if other in self.names and KINDS[other].theme == KINDS[name].theme]
            self.runs.update(launch.train(launch.scenarios(names, MODES, [size]), self.factory.mktemp("loops")))
        return {mode: self.runs[f"{name}-{mode}-{size}"] for mode in MODES}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Table:
    return Table(tmp_path_factory, pytestconfig.getoption("--whole"))


def closeness(kind: kinds.Kind, size: int) -> float:
    return kind.close if size == 2 else max(kind.close, kind.close_three)


def needed(runs: Dict[str, Ranks]) -> None:
    lacks = (runs["hand"][0][1] or {}).get("unavailable")
    if lacks:
        pytest.skip(f"this torch has no {lacks}")


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_plain_torch_does_what_is_declared(table: Table, name: str, size: int) -> None:
    runs = table.of(name, size)
    needed(runs)
    hand = verdict(runs["hand"], runs["hand"], 0.0)
    assert hand.outcome == "right", hand
    plain = verdict(runs["plain"], runs["hand"], closeness(KINDS[name], size))
    assert not as_declared(KINDS[name], plain, runs["plain"]), runs["plain"][0][0][-3000:]


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize(("name", "size"), SIZES)
def test_ddpfix_keeps_the_law(table: Table, name: str, size: int, mode: str) -> None:
    kind, runs = KINDS[name], table.of(name, size)
    needed(runs)
    plain, ours = (verdict(runs[each], runs["hand"], closeness(kind, size)) for each in ("plain", mode))
    why = broken(kind, plain, ours, runs[mode], runs["plain"], runs["hand"], size)
    assert not why, "\n".join([why, *(log[-3000:] for log, _ in runs[mode])])


def test_there_are_as_many_programs_as_the_documents_say() -> None:
    assert len(KINDS) >= 85 and sum(kind.three for kind in KINDS.values()) * 3 >= len(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_program_that_is_declared_to_fail_says_why(name: str) -> None:
    kind = KINDS[name]
    assert kind.plain in ("right", "error", "hangs", "parts", "wrong") and re.compile(kind.cause)
    assert kind.ours in ("exact", "error", "either", "plain") and (kind.ours == "exact" or len(kind.reason) > 40)
