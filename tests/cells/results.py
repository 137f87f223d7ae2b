"""What a run of a cell leaves in ``tests/results/<cell>.json``; the matrix's ``tested:`` is made from these files."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, Dict, List

from tests.cells.table import Cell

FOLDER = Path(__file__).resolve().parent.parent / "results"


def merged(cell: Cell, records: List[Dict[str, Any]], seconds: float) -> Dict[str, Any]:
    """One result of the records of a cell's runs of pytest.

    A patch is in it if one of its tests passed and none failed, in any of the runs.
    """
    packages: Dict[str, str] = records[0]["packages"]
    broken = {name for record in records for name in record["broken"]}
    passed = {name for record in records for name in record["patches"]}
    return {
        "cell": cell.name,
        "toolkit": cell.toolkit,
        "version": cell.version,
        "python": records[0]["python"],
        "torch": packages["torch"].partition("+")[0],
        "packages": packages,
        "patches": sorted(passed - broken),
        **{count: sum(record[count] for record in records) for count in ("passed", "failed", "skipped")},
        "seconds": round(seconds),
        "recorded": datetime.date.today().isoformat(),
    }


def write(result: Dict[str, Any], folder: Path = FOLDER) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{result['cell']}.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return file
