"""Writes what was tested into the matrix, from the results of cells: ``python -m tests.support.tested``.

A result is a file in ``tests/results``, one a cell: which versions were there, and the patches whose tests ran and
passed. A patch counts as tested on the version that its own toolkit has in the cell. A file that no run has written is
refused.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

from packaging.version import Version

from ddpfix.matrix.compiling.reader import Reader
from ddpfix.matrix.gone import GONE, RENAMED
from ddpfix.matrix.model import Matrix
from ddpfix.matrix.ranges import within
from tests.support import compiled
from tests.support.compiled import ROOT, YAML

RESULTS = ROOT / "tests" / "results"
HEADING = "tested: # written by python -m tests.support.tested, from tests/results"
COUNTS = ("passed", "failed", "skipped", "seconds")
Result = Dict[str, Any]


def read(folder: Path = RESULTS) -> List[Result]:
    """All results, by the names of their files.

    Raises:
        ValueError: a result is none of a run whose tests all passed.
    """
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    for result in found:
        _check(result)
    return found


def _check(result: Result) -> None:
    if result["recorded"] is None or not all(type(result[word]) is int for word in COUNTS):
        raise ValueError(f"no run has written the result of {result['cell']}: nox -s cell -- {result['cell']}")
    if result["failed"] or not result["passed"]:
        raise ValueError(f"tests of {result['cell']}: {result['passed']} passed, {result['failed']} failed")


def by_version(results: Sequence[Result], whole: Matrix) -> Dict[str, Dict[Version, Set[str]]]:
    """Toolkit -> version -> the patches whose tests passed there.

    Raises:
        ValueError: a result names a patch that the matrix does not have, or lacks the version of a patch's toolkit.
    """
    found: Dict[str, Dict[Version, Set[str]]] = {}
    for result in results:
        # A removed patch stays in the results of earlier runs, and a renamed one under the name that it had.
        for patch in (RENAMED.get(each, each) for each in result["patches"] if each not in GONE):
            if patch not in whole.patches:
                raise ValueError(f"the result of {result['cell']} names {patch!r}, which the matrix does not have")
            toolkit = whole.patches[patch].toolkit
            version = _version(result, toolkit, whole.toolkits[toolkit])
            if version is None:
                raise ValueError(f"the result of {result['cell']} names {patch!r}, and no version of {toolkit}")
            # Builds of one release differ in the local part only.
            found.setdefault(toolkit, {}).setdefault(Version(Version(version).public), set()).add(patch)
    return found


def _version(result: Result, toolkit: str, distribution: str) -> Optional[str]:
    if toolkit in (result["toolkit"], "torch"):
        return str(result["version"] if toolkit == result["toolkit"] else result["torch"])
    return (result.get("packages") or {}).get(distribution)


def block(results: Sequence[Result], whole: Matrix) -> str:
    """The part of the matrix: of each toolkit its versions, and of each patch the ones on which it was not tested."""
    lines = [HEADING]
    for toolkit, passed in sorted(by_version(results, whole).items()):
        cured = _cured(whole, toolkit, sorted(passed))
        versions = [version for version in sorted(passed) if any(version in cured[patch] for patch in passed[version])]
        left_out = {patch: [v for v in versions if v in cured[patch] and patch not in passed[v]] for patch in cured}
        lines += [f"  {toolkit}:", *_listed("    versions", versions)]
        exceptions = [line for patch in sorted(left_out) for line in _listed(f"      {patch}", left_out[patch])]
        lines += ["    except:", *exceptions] if exceptions else []
    return "\n".join(lines) + "\n"


def _cured(whole: Matrix, toolkit: str, versions: Sequence[Version]) -> Dict[str, Set[Version]]:
    """By patch, the versions in a row with the status cured."""
    found: Dict[str, Set[Version]] = {name: set() for name, p in whole.patches.items() if p.toolkit == toolkit}
    for row in whole.rows:
        if row.patch in found and row.status == "cured":
            found[row.patch].update(within(row.versions, versions))
    return found


def _listed(key: str, versions: Sequence[Version]) -> List[str]:
    if not versions:
        return []
    indent = " " * (len(key) - len(key.lstrip()))
    text = f"{key.lstrip()}: [{', '.join(json.dumps(str(version)) for version in versions)}]"
    return textwrap.wrap(text, 120, initial_indent=indent, subsequent_indent=indent + "  ")


def written(text: str, made: str) -> str:
    """The text of the matrix with this part in place of its own."""
    before, found, _ = text.partition("\ntested:")
    assert found, "the matrix has no part tested:"
    return f"{before}\n{made}"


def main() -> int:
    try:
        text = YAML.read_text(encoding="utf-8")
        made = written(text, block(read(), Reader(YAML).untested()))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if made != text:
        YAML.write_text(made, encoding="utf-8")
        compiled.anew()
    return 0


if __name__ == "__main__":
    sys.exit(main())
