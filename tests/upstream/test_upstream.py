"""A quick part of ``python -m tests.upstream``, which as a whole takes some minutes."""

from __future__ import annotations

import pytest

from tests.upstream import accelerate_suite, torch_suite
from tests.upstream.outcomes import EXPECTED, MODES, STOCK, Outcome, Outcomes, table, verdict, worse

pytest.importorskip("expecttest", reason="NOT RUN: torch's tests need expecttest, which the extra `test` brings")


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.sampled(inside=False)) for mode in MODES if mode != STOCK]
)
def test_torchs_own_tests_of_ddp(mode: str) -> None:
    """All of them pass in stock, which is not shown again here; the command does."""
    found = torch_suite.run(torch_suite.QUICK, MODES[mode])
    outcomes = {test: {STOCK: Outcome("passed", 0.0), mode: outcome} for test, outcome in found.items()}
    assert worse(outcomes, mode) == [], table(outcomes, [mode])
    # Those that expect the error find none: ddpfix was on.
    failed = [test for test, outcome in found.items() if outcome.word == "failed"]
    assert failed == [test for test in torch_suite.QUICK if test in EXPECTED] != []


@pytest.mark.sampled(inside=False)
def test_a_script_of_accelerate() -> None:
    for test, outcome in accelerate_suite.run(accelerate_suite.QUICK, MODES["auto"]).items():
        assert outcome.word == "passed", f"{test}\n{outcome.text}"


def one(stock: str, found: str, text: str = "", test: str = "test_any") -> Outcomes:
    return {test: {STOCK: Outcome(stock, 1.0), "auto": Outcome(found, 2.0, text)}}


@pytest.mark.parametrize(
    ("stock", "found", "word"),
    [
        ("passed", "passed", ""),
        ("passed", "failed", "WORSE"),
        ("passed", "hung", "WORSE"),
        ("passed", "skipped", "WORSE"),
        ("failed", "failed", ""),
        ("failed", "passed", "better"),
        ("missing", "passed", "better"),
        ("passed", "missing", "WORSE"),
        ("failed", "missing", "other"),
        ("failed", "hung", "other"),
        ("skipped", "skipped", ""),
    ],
)
def test_what_is_worse(stock: str, found: str, word: str) -> None:
    outcomes = one(stock, found)
    assert verdict("test_any", "auto", *outcomes["test_any"].values()) == word
    assert worse(outcomes, "auto") == (["test_any"] if word == "WORSE" else [])


@pytest.mark.parametrize("test", EXPECTED)
def test_an_expected_failure_counts_only_with_its_own_words(test: str) -> None:
    for text in EXPECTED[test].says:
        assert worse(one("passed", "failed", f"AssertionError: {text}", test), "auto") == []
    assert worse(one("passed", "failed", "ValueError: another", test), "auto") == [test]
    assert worse(one("passed", "hung", "", test), "auto") == [test]
