"""What a run of a cell leaves in ``tests/results/<cell>.json``; the matrix's ``tested:`` is made from these files."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, Dict, List

from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.settings.gone import RENAMED
from tests.cells.table import Cell

FOLDER = Path(__file__).resolve().parent.parent / "results"


def merged(cell: Cell, records: List[Dict[str, Any]], seconds: float, size: int = 1) -> Dict[str, Any]:
    """One result of the records of a cell's runs of pytest.

    A patch is in it if one of its tests passed and none failed, in any of the runs. If only one in ``size`` tests was
    run, the result says so, and how many were left out.
    """
    packages: Dict[str, str] = records[0]["packages"]
    broken = {name for record in records for name in record["broken"]}
    passed = {name for record in records for name in record["patches"]}
    failures = sorted(test for record in records for test in record["failures"])
    return {
        "cell": cell.name,
        "toolkit": cell.toolkit,
        "version": cell.version,
        "python": records[0]["python"],
        "torch": packages["torch"].partition("+")[0],
        "packages": packages,
        "patches": sorted(passed - broken),
        "cured": cured(cell),
        **{count: sum(record[count] for record in records) for count in ("passed", "failed", "skipped")},
        **({"sample": size, "left": sum(record["left"] for record in records)} if size > 1 else {}),
        "seconds": round(seconds),
        "recorded": datetime.date.today().isoformat(),
        **({"failures": failures} if failures else {}),
    }


def failures(cell: Cell, folder: Path = FOLDER) -> List[str]:
    """The tests of a cell that failed in its last run; none where there was no run."""
    file = folder / f"{cell.name}.json"
    return json.loads(file.read_text(encoding="utf-8")).get("failures", []) if file.exists() else []


def with_second(result: Dict[str, Any], record: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    """A result after its failures have been run once more; ``again`` in it names those that failed only the first time.

    One that is skipped now has been found to be impossible on this release.

    Raises:
        ValueError: the second run had other tests than those that failed.
    """
    first = result["failures"]
    if sum(record[word] for word in ("passed", "failed", "skipped")) != len(first) or not set(
        record["failures"]
    ) <= set(first):
        raise ValueError(f"{len(first)} tests failed, and not all of them ran again")
    left = record["failures"]
    return {
        **{key: value for key, value in result.items() if key != "failures"},
        "patches": sorted({*result["patches"], *record["patches"]} - {*record["broken"]}),
        "passed": result["passed"] + record["passed"],
        "failed": len(left),
        "skipped": result["skipped"] + record["skipped"],
        "seconds": result["seconds"] + round(seconds),
        "again": sorted({*result.get("again", ()), *first} - {*left}),
        **({"failures": left} if left else {}),
    }


def cured(cell: Cell) -> List[str]:
    """The patches of the cell's own toolkit that the matrix has a fix for at its version."""
    whole, version = loader.load(), Version(cell.version)
    rows = (row for row in whole.rows if whole.patches[row.patch].toolkit == cell.toolkit)
    return sorted({row.patch for row in rows if row.status == "cured" and row.versions.holds(version)})


def is_missing(cell: Cell, folder: Path = FOLDER) -> bool:
    """Whether no run of this cell without a failure is recorded that was made with each fix that the matrix has now.

    A fix that had no passing test in the run (``cured`` has it, ``patches`` has not) does not make it missing.
    """
    file = folder / f"{cell.name}.json"
    if not file.exists():
        return True
    found = json.loads(file.read_text(encoding="utf-8"))
    # Results from before this was kept: what they name was there.
    # A fix that has another name by now is in an earlier result under the one that it had.
    known = [RENAMED.get(name, name) for name in found.get("cured", found["patches"])]
    return found["recorded"] is None or found["failed"] > 0 or not set(cured(cell)) <= set(known)


def write(result: Dict[str, Any], folder: Path = FOLDER) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{result['cell']}.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return file
