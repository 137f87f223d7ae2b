"""What a test of upstream ended with, and what has become worse under ddpfix."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

STOCK = "stock"
# The modes of the command, and the environment that switches each of them on.
MODES: Dict[str, Dict[str, str]] = {
    STOCK: {},
    "auto": {"DDPFIX": "1"},
    "late": {"DDPFIX": "1", "DDPFIX_UNUSED": "late"},
}


@dataclass(frozen=True)
class Outcome:
    """One test in one mode."""

    word: str  # passed, failed, skipped, hung, or missing (not run in this mode, as its file cannot be imported there)
    seconds: float  # how long it took
    text: str = ""  # the error, or why it was skipped


@dataclass(frozen=True)
class Expected:
    """A test that fails under ddpfix because torch's error does not come, or says more."""

    says: Tuple[str, ...]  # one of these has to stand in its failure; with another one it counts as any test
    reason: str  # what it expects, in words


_NONE = "it expects torch's error about unused parameters, and there is none: the reduction is finalized"
_LONGER = (
    "it expects torch's error where the user said find_unused_parameters=False: late has none, and auto, which"
    " respects the False, adds its diagnosis to the message that DDP has logged"
)
_LOGGED = "in ddp logging data error"

EXPECTED: Dict[str, Expected] = {
    "test_ddp_unused_params_rebuild_buckets_exception": Expected(("unused parameters error not raised",), _NONE),
    "test_ddp_multiple_nested_unused_params_error": Expected(("Expected error was not raised",), _NONE),
    "test_ddp_multiple_nested_unused_params_err_ignore_params": Expected(("Expected error was not raised",), _NONE),
    "test_ddp_control_flow_different_across_ranks": Expected(("DDP error not raised", _LOGGED), _LONGER),
    "test_ddp_control_flow_same_across_ranks": Expected(("DDP error not raised", _LOGGED), _LONGER),
}

# By test, and in it by mode.
Outcomes = Dict[str, Dict[str, Outcome]]
# A file that cannot be imported is one failed test, and the tests in it are those of the other mode alone.
NOT_RUN = Outcome("missing", 0.0, "this test was not run in this mode")


def compared(
    suite: Any, names: Sequence[str], modes: Sequence[str], seconds: Optional[Dict[str, float]] = None
) -> Outcomes:
    """The outcomes of tests, or of all in some files, in stock and in these modes; times are added to ``seconds``.

    What is worse is run once more, in both: on a busy machine a test may pass the first time only, or the second.
    """
    every, by_mode, taken = list(dict.fromkeys([STOCK, *modes])), {}, {} if seconds is None else seconds
    for mode in every:
        begun = time.monotonic()
        by_mode[mode] = suite.run(names, MODES[mode])
        taken[mode] = taken.get(mode, 0) + round(time.monotonic() - begun)
        print(f"{names[0]} and {len(names) - 1} more, {mode}: {time.monotonic() - begun:.0f} s", flush=True)
    tests = dict.fromkeys(test for found in by_mode.values() for test in found)
    outcomes = {test: {mode: by_mode[mode].get(test, NOT_RUN) for mode in every} for test in tests}
    for mode in every:
        again = worse(outcomes, mode)
        for name in (mode, STOCK) if again else ():
            print(f"{len(again)} tests once more, {name}", flush=True)
            for test, outcome in suite.run(again, MODES[name], 2 * suite.LIMIT).items():
                outcomes[test][name] = outcome
    return outcomes


def verdict(test: str, mode: str, stock: Outcome, found: Outcome) -> str:
    """What a mode has changed: "" (nothing), "expected", "better" or "WORSE"."""
    if found.word == stock.word:
        return ""
    if stock.word in ("failed", "missing") and found.word == "passed":
        return "better"
    expected = EXPECTED.get(test)
    if expected is not None and found.word == "failed" and any(text in found.text for text in expected.says):
        return "expected"
    return "WORSE" if stock.word == "passed" else "other"


def worse(outcomes: Outcomes, mode: str) -> List[str]:
    """The tests that pass in stock and do not in this mode, apart from those that expect the very error."""
    return [
        test
        for test, found in outcomes.items()
        if mode in found and verdict(test, mode, found[STOCK], found[mode]) == "WORSE"
    ]


def table(outcomes: Outcomes, modes: Sequence[str]) -> str:
    """Counts of each mode, and one line for each test that ends in another way than in stock."""
    lines = [f"{'mode':8}{'passed':>8}{'failed':>8}{'hung':>8}{'skipped':>9}"]
    for mode in modes:
        words = [found[mode].word for found in outcomes.values() if mode in found]
        counts = [words.count(word) for word in ("passed", "failed", "hung", "skipped")]
        lines.append("{:8}{:8}{:8}{:8}{:9}".format(mode, *counts))
    for test, found in sorted(outcomes.items()):
        for mode in modes:
            word = verdict(test, mode, found[STOCK], found[mode]) if mode in found else ""
            if word:
                reason = EXPECTED[test].reason if word == "expected" else last_line(found[mode])
                lines.append(f"{word}: {test}: {found[STOCK].word} in stock, {found[mode].word} under {mode}: {reason}")
    return "\n".join(lines)


def last_line(found: Outcome) -> str:
    lines = [line.strip() for line in found.text.splitlines() if line.strip()]
    # What follows an assertion's message is torch's advice how to run the test alone.
    told = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return (told or lines or [""])[-1][:300]
