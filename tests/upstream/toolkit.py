"""``python -m tests.upstream.toolkit NAME --source CHECKOUT``: its own tests, stock and under ddpfix, test by test.

It is run in an environment that has the toolkit, pytest and pytest-xdist. The result is
tests/upstream/results/NAME-VERSION.json, from which docs/dev/upstream.md has its table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Sequence

from tests.upstream.outcomes import MODES, STOCK, Outcomes, compared, table, worse
from tests.upstream.source_suite import SourceError, SourceSuite
from tests.upstream.sources import LEFT_OUT, SOURCES

RESULTS = Path(__file__).resolve().parent / "results"


def result(suite: SourceSuite, outcomes: Outcomes, mode: str, left: Sequence[str]) -> Dict[str, Any]:
    """What is kept of a run: counts of each file, and each test that ended in another way."""
    files: Dict[str, Dict[str, Dict[str, int]]] = {}
    for test, found in outcomes.items():
        counts = files.setdefault(test.partition("::")[0], {STOCK: {}, mode: {}})
        for name in (STOCK, mode):
            counts[name][found[name].word] = counts[name].get(found[name].word, 0) + 1
    other = {test: found for test, found in outcomes.items() if found[STOCK].word != found[mode].word}
    return {
        "toolkit": suite.source.package,
        "version": suite.installed,
        "checkout": suite.written,
        "python": "{}.{}".format(*sys.version_info),
        "torch": metadata.version("torch"),
        "recorded": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": suite.seconds,
        "applied": sorted(suite.applied),
        "left_out": LEFT_OUT[suite.source.package],
        "files": files,
        "not_run": list(left),
        "other": {test: {name: one.word for name, one in found.items()} for test, found in sorted(other.items())},
        "worse": worse(outcomes, mode),
    }


def saying_nothing(found: Dict[str, Any]) -> List[str]:
    """Files of which tests fail and none passes in any mode: the environment lacks something, nothing is compared."""
    counts = {name: list(file.values()) for name, file in found["files"].items()}
    return [
        name
        for name, modes in counts.items()
        if not any(one.get("passed") for one in modes) and (modes[0].get("failed") or modes[0].get("hung"))
    ]


def without(found: Dict[str, Any], silent: Sequence[str]) -> Dict[str, Any]:
    """The same result in which these files count as not run."""
    kept = {name: counts for name, counts in found["files"].items() if name not in silent}
    other = {test: words for test, words in found["other"].items() if test.partition("::")[0] not in silent}
    return {**found, "files": kept, "other": other, "not_run": sorted({*found["not_run"], *silent})}


def results() -> List[Dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]


def totals(found: Dict[str, Any], mode: str) -> List[int]:
    """How many tests of a result passed, failed (or hung) and were skipped in a mode."""
    counts = [file[mode] for file in found["files"].values()]
    words = (("passed",), ("failed", "hung"), ("skipped",))
    return [sum(count.get(word, 0) for count in counts for word in group) for group in words]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream.toolkit", description=__doc__)
    parser.add_argument("toolkit", choices=SOURCES)
    parser.add_argument("--source", type=Path, required=True, metavar="CHECKOUT", help="a checkout of the same release")
    parser.add_argument("--mode", choices=[mode for mode in MODES if mode != STOCK], default="auto")
    parser.add_argument("--only", action="append", metavar="TEXT", help="files with this in their path")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="ddpfix-upstream-") as folder:
        try:
            suite = SourceSuite(SOURCES[given.toolkit], given.source.resolve(), Path(folder))
        except SourceError as error:
            print(error)
            return 2
        outcomes: Outcomes = {}
        for names in suite.groups(given.only or ()):
            outcomes.update(compared(suite, names, [given.mode], suite.seconds))
            # A run that is interrupted leaves what it has found, and the names of what it has not run.
            run = {test.partition("::")[0] for test in outcomes}
            left = [name for every in suite.groups() for name in every if name not in run]
            found = result(suite, outcomes, given.mode, left)
            told = json.dumps(without(found, saying_nothing(found)), indent=1, sort_keys=True)
            path = RESULTS / f"{found['toolkit']}-{found['version']}.json"
            RESULTS.mkdir(exist_ok=True)
            path.write_text(told + "\n", encoding="utf-8")
            print(path)
    print(table(outcomes, [STOCK, given.mode]))
    print("applied: " + (", ".join(sorted(suite.applied)) or "nothing"))
    if not suite.applied:
        print("no patch was applied: this says nothing")
    for name in saying_nothing(found):
        print(f"no test passes in either mode, so the file counts as not run: {name}")
    return int(bool(found["worse"] or saying_nothing(found)) or not suite.applied)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
