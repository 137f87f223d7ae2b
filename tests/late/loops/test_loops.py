"""Each training program trains under ddpfix as in plain torch, or exactly, or ends with an error that says why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Tuple

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


class Table(Dict[Tuple[str, int], Dict[str, Ranks]]):
    """The runs of a program on some ranks, by mode; they are made when a test first asks for them."""

    def __init__(self, folder: Path, threads: bool = False) -> None:
        super().__init__()
        self.folder, self.threads = folder, threads

    def __missing__(self, key: Tuple[str, int]) -> Dict[str, Ranks]:
        name, size = key
        runs = launch.train(launch.scenarios([name], MODES, [size], self.threads), self.folder)
        self[key] = {mode: runs[f"{name}-{mode}-{size}"] for mode in MODES}
        return self[key]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return Table(tmp_path_factory.mktemp("loops"))


def keeps_the_law(name: str, runs: Dict[str, Ranks], mode: str, size: int) -> None:
    why = broken(KINDS[name], runs, mode, size)
    assert not why, "\n".join([why, *(log[-3000:] for log, _ in runs[mode])])


def needed(runs: Dict[str, Ranks]) -> None:
    lacks = (runs["hand"][0][1] or {}).get("unavailable")
    if lacks:
        pytest.skip(f"this torch has no {lacks}")


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_plain_torch_does_what_is_declared(table: Table, name: str, size: int) -> None:
    runs = table[name, size]
    needed(runs)
    hand = verdict(runs["hand"], runs["hand"], 0.0)
    assert hand.outcome == "right", hand
    plain = verdict(runs["plain"], runs["hand"], KINDS[name].closeness(size))
    assert not as_declared(KINDS[name], plain, runs["plain"]), runs["plain"][0][0][-3000:]


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize(("name", "size"), SIZES)
def test_ddpfix_keeps_the_law(table: Table, name: str, size: int, mode: str) -> None:
    runs = table[name, size]
    needed(runs)
    keeps_the_law(name, runs, mode, size)


def test_there_are_as_many_programs_as_the_documents_say() -> None:
    assert len(KINDS) >= 85 and sum(kind.three for kind in KINDS.values()) * 3 >= len(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_program_that_is_declared_to_fail_says_why(name: str) -> None:
    kind = KINDS[name]
    assert kind.plain in ("right", "error", "hangs", "parts", "wrong") and re.compile(kind.cause)
    assert kind.ours in ("exact", "error", "either", "plain") and (kind.ours == "exact" or len(kind.reason) > 40)
