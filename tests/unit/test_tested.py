"""The tested versions in the matrix are the ones in the results of cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest
from packaging.version import Version

from ddpfix.matrix import loader
from ddpfix.matrix.compiling.reader import Reader
from ddpfix.settings.gone import GONE, RENAMED
from tests.support import tested
from tests.support.compiled import YAML

RESULTS = tested.read()


def result(**changed: Any) -> Dict[str, Any]:
    plain = {"cell": "funasr-1.0.19", "toolkit": "funasr", "version": "1.0.19", "torch": "2.13.0", "packages": {}}
    return {**plain, "patches": ["funasr.layerdrop"], **changed}


def test_the_matrix_is_up_to_date() -> None:
    text = YAML.read_text(encoding="utf-8")
    made = tested.written(text, tested.block(RESULTS, Reader(YAML).untested()))
    assert text == made, "run: python -m tests.support.tested"


RUN = {"recorded": "2026-11-23", "passed": 3, "failed": 0, "skipped": 1, "seconds": 2}
BY_HAND = {"recorded": None, "passed": None, "failed": None, "skipped": None, "seconds": None}


def folder_with(found: Dict[str, Any], folder: Path) -> Path:
    (folder / f"{found['cell']}.json").write_text(json.dumps(found), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (BY_HAND, "no run has written the result of funasr-1.0.99"),
        ({**RUN, "passed": None}, "no run has written"),
        ({**RUN, "seconds": "2"}, "no run has written"),
        ({**RUN, "failed": 1}, "3 passed, 1 failed"),
        ({**RUN, "passed": 0}, "0 passed, 0 failed"),
    ],
)
def test_a_result_that_is_of_no_good_run_is_refused(numbers: Dict[str, Any], message: str, tmp_path: Path) -> None:
    made = folder_with(result(cell="funasr-1.0.99", version="1.0.99", **numbers), tmp_path)
    with pytest.raises(ValueError, match=message):
        tested.read(made)


def test_a_result_has_what_it_should() -> None:
    for path in sorted(tested.RESULTS.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert path.stem == found["cell"] and Version(found["version"])
        assert found["toolkit"] in loader.load().toolkits
        assert found["patches"] and set(found["patches"]) <= {*loader.load().patches, *GONE, *RENAMED}
        numbers = [found[name] for name in tested.COUNTS]
        if found["recorded"] is None:
            assert numbers == [None] * 4 and "before results were kept" in found["note"]
        else:
            assert found["passed"] > 0 and found["failed"] == 0 and None not in numbers


def test_no_tested_version_is_lost_on_the_way() -> None:
    """Each (patch, version) of a result that a row cures is in that row, and nothing else is."""
    whole = loader.load()
    passed = tested.by_version(RESULTS, whole)
    recorded = {(patch, version) for found in passed.values() for version, names in found.items() for patch in names}
    cured = [row for row in whole.rows if row.status == "cured"]
    recorded = {
        (patch, v) for patch, v in recorded if any(row.patch == patch and row.versions.holds(v) for row in cured)
    }
    kept = {(row.patch, version) for row in whole.rows for version in row.tested}
    assert kept == recorded and len(kept) > 500


def test_a_patch_is_tested_on_the_version_of_its_own_toolkit() -> None:
    whole = loader.load()
    patches = ["funasr.layerdrop", "torch.finalize", "accelerate.intent"]
    found = tested.by_version([result(patches=patches, torch="2.8.0+cpu", packages={"accelerate": "1.2.1"})], whole)
    assert found == {
        "funasr": {Version("1.0.19"): {"funasr.layerdrop"}},
        "torch": {Version("2.8.0"): {"torch.finalize"}},
        "accelerate": {Version("1.2.1"): {"accelerate.intent"}},
    }
    with pytest.raises(ValueError, match="funasr-1.0.19 names 'accelerate.intent', and no version of accelerate"):
        tested.by_version([result(patches=["accelerate.intent"])], whole)
    with pytest.raises(ValueError, match="names 'funasr.nothing', which the matrix does not have"):
        tested.by_version([result(patches=["funasr.nothing"])], whole)
