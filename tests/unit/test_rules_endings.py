"""How ranks end, from the facts of one rank and what it knows of another; and that each kind of finding has a row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest

from ddpfix.rules import endings, facts
from ddpfix.rules.endings import Lost
from ddpfix.rules.facts import Called, End, TrainingProgress
from ddpfix.rules.finding import BAD, PLAIN, Finding, several
from ddpfix.rules.hang import sentences
from ddpfix.rules.no_gradient import causes

LOST = Lost(1, "process 7 on x", 7, 0, 8)
SILENT = "process 7 on x has given no sign of life for 4 s"
UNKNOWN = LOST._replace(step=None, by_step=None)
DONE = End(1, facts.ENDED, step=3, work=TrainingProgress(3, 3))
HERE = End(0, facts.FAILED, step=4, work=TrainingProgress(4, 4), called=Called({"train.py:8": 2}, "train.py:8"))
SKIPPED = TrainingProgress(4, 3, 1, "train.py:41")
NOT_CALLED = "in which this rank fails (train.py:8). Call it on all ranks or on none"
STORE = "the process that hosted the process group's store has exited"


FAILED, FOLLOWED, ABOVE = endings.FAILED, endings.FOLLOWED, endings.ABOVE
IN_STEPS = "last seen in step 7, rank 0 is in step 8"
FAILS = endings.failed([1], 4, "E: x")


@pytest.mark.parametrize(
    ("found", "kind", "ranks", "line"),
    [
        (endings.failed([1], 41, "IndexError: 7 (aug.py:12)"), FAILED, [1], "rank 1 failed in step 41: IndexE"),
        (endings.failed([0, 1], None, "E", "2 parameters"), FAILED, [0, 1], "ranks 0 and 1 failed: E. 2 param"),
        (endings.failed([1], None, "E", follows=True), FOLLOWED, [1], "rank 1 failed: E"),
        (endings.likewise([0, 2]), FAILED, [0, 2], "ranks 0 and 2 failed with the same error"),
        (endings.consequence([0]), FOLLOWED, [0], "rank 0 failed as a consequence"),
        (endings.above(FAILS), ABOVE, (), "this rank ends because rank 1 failed in step"),
        (endings.above(Finding("", (), "it exited")), ABOVE, (), "this rank ends because it exited"),
        (endings.silent(LOST, 4.0), endings.SILENT, [1], f"rank 1 is silent, {IN_STEPS}: {SILENT}"),
        (endings.store_lost(STORE), endings.STORE_LOST, (), f"{STORE} before this rank could read the cause; it was"),
    ],
)
def test_how_a_rank_ends(found: Finding, kind: str, ranks: List[int], line: str) -> None:
    assert (found.kind, found.ranks, found.advice) == (kind, ranks, "") and found.line.startswith(line), found


@pytest.mark.parametrize(
    ("lost", "how", "where", "line"),
    [
        (LOST, "It was ended by SIGKILL", "", f", {IN_STEPS}: process 7 on x has exited. It was"),
        (
            UNKNOWN,
            "It exited with code 3",
            "barrier (train.py:9)",
            ": process 7 on x has exited. It exited with code 3. Ran",
        ),
    ],
)
def test_how_a_rank_was_killed(lost: Lost, how: str, where: str, line: str) -> None:
    found = endings.killed(lost, how, where)
    assert (found.kind, found.ranks, found.advice) == (endings.KILLED, [1], "")
    assert found.line.startswith(f"rank 1 ended without a word{line}") and (not where or where in found.line), found


END = "reached the end of its program in step"
CALLED = [Called({"train.py:8": count}, "train.py:8") for count in (1, 2)]


# Who has left, and has done as much, less, or something else; that it was to call a collective; the advice.
@pytest.mark.parametrize(
    ("there", "step", "calls", "line", "advised"),
    [
        (DONE, 3, False, f"{END} 3", False),
        (End(1, facts.LEFT), 4, False, "left its process group", False),
        (End(1, facts.EXITED, step=9), 4, False, "exited in step 9", False),
        (End(1, facts.FAILED, "rank 1 failed: E"), 4, False, "failed: E", False),
        (DONE, 4, False, f"{END} 3, and this rank is in step 4. With uneven data, DDPFIX_UN", True),
        (
            DONE._replace(step=4, work=SKIPPED),
            4,
            False,
            f"{END} 4. Backward was called 3 times in 4 forwards on rank",
            True,
        ),
        (DONE._replace(called=CALLED[0]), 4, True, f"{END} 3, without calling the collective {NOT_CALLED}", True),
        # It has called as many, or nothing was counted there.
        (DONE._replace(step=4, called=CALLED[1]), 4, True, "reached", False),
        (DONE._replace(step=4), 4, True, "reached", False),
    ],
)
def test_a_rank_that_has_left(there: End, step: int, calls: bool, line: str, advised: bool) -> None:
    found = endings.left(there, HERE._replace(step=step), calls)
    assert (found.kind, found.ranks, bool(found.advice)) == (endings.LEFT, [1], advised), found
    assert found.line.startswith(f"rank 1 {line}"), found


def test_a_gradient_that_was_to_come_is_not_missed() -> None:
    """The rank that fails stands in its backward."""
    done = DONE._replace(step=4, work=TrainingProgress(4, 4))
    missed = HERE._replace(work=TrainingProgress(4, 4, missed=True))
    assert endings.left(done, missed, False).advice == ""


@pytest.mark.parametrize(
    ("have_exited", "is_explained", "level", "where"),
    [
        (True, False, BAD, "ranks 0 and 1 were killed in step 8 (no exit record)"),
        (False, False, BAD, "ranks 0 and 1 have no exit record: killed or still running in step 8 when this page was"),
        (True, True, PLAIN, "ranks 0 and 1 have no exit record: a launcher ends the other ranks"),
    ],
)
def test_a_trace_without_an_end(have_exited: bool, is_explained: bool, level: str, where: str) -> None:
    found = endings.unrecorded([0, 1], " in step 8", have_exited, is_explained)
    assert (found.kind, found.level) == (endings.UNRECORDED, level) and found.where.startswith(where)
    assert bool(found.advice) == (have_exited and not is_explained)


@pytest.mark.parametrize(
    "ranks, told",
    [
        ([3], "rank 3"),
        ([2, 0], "ranks 0 and 2"),
        ([0, 1, 2], "ranks 0 to 2"),
        ([0, 1, 3, 5, 6, 7], "ranks 0, 1, 3 and 5 to 7"),
        (list(range(0, 22, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 1 more"),
        (list(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 10 more"),
    ],
)
def test_ranks_in_words(ranks: List[int], told: str) -> None:
    assert several(ranks) == told


OTHERS = ("BAD", "PLAIN", "END_TOGETHER", "ON_ALL_RANKS")


def test_each_kind_of_finding_has_a_row() -> None:
    # Of a module's own: other names are imported, or sentences.
    texts = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_rules_*.py"))
    kinds = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (endings, causes, sentences)
        for name, value in vars(module).items()
        if name.isupper() and name[0] != "_" and isinstance(value, str) and name not in OTHERS
    }
    assert [kind for kind in sorted(kinds) if not re.search(rf"\b{kind}\b", texts)] == []
