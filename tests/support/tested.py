"""What was tested, from the results of cells to the matrix: ``python -m tests.support.tested``.

    python -m tests.support.tested                  # writes the part tested: of compat_matrix.yaml
    python -m tests.support.tested --here toolkit   # runs tests/<toolkit> in this environment, notes the result, writes

A result is a file in ``tests/results``, one a cell: which versions were there, and the patches whose tests ran and
passed. A patch counts as tested on the version that its own toolkit has in the cell. A file that no run has written is
refused.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import textwrap
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from packaging.version import Version

from ddpfix.matrix.compiling.reader import Reader
from ddpfix.matrix.model import Matrix
from ddpfix.matrix.ranges import within
from ddpfix.settings.gone import GONE, RENAMED
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


def here(toolkit: str, folder: Path = RESULTS) -> int:
    """Run a toolkit's tests in this environment and note the result; returns pytest's exit code."""
    compiled.anew()
    whole = Reader(YAML).untested()
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"tests/{toolkit.lower()}"]
    done = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stdout.write(done.stdout)
    if done.returncode == 0:
        noted = _noted(toolkit, whole, _counts(done.stdout), time.monotonic() - begun)
        folder.mkdir(exist_ok=True)
        (folder / f"{noted['cell']}.json").write_text(json.dumps(noted, indent=1) + "\n", encoding="utf-8")
    return done.returncode


def _counts(output: str) -> Dict[str, int]:
    last = output.strip().splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", last)}


def _noted(toolkit: str, whole: Matrix, counts: Mapping[str, int], seconds: float) -> Result:
    version = metadata.version(whole.toolkits[toolkit])
    cured = _cured(whole, toolkit, [Version(version)])
    return {
        "cell": f"{toolkit}-{version}",
        "toolkit": toolkit,
        "version": version,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "packages": {},
        "patches": sorted(patch for patch, versions in cured.items() if versions),
        **{word: counts.get(word, 0) for word in ("passed", "failed", "skipped")},
        "seconds": round(seconds),
        "recorded": time.strftime("%Y-%m-%d"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what was tested into the matrix.")
    parser.add_argument("--here", metavar="TOOLKIT", help="run its tests in this environment first")
    options = parser.parse_args()
    if options.here and here(options.here) != 0:
        return 1
    try:
        return _write(read())
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _write(results: Sequence[Result]) -> int:
    text = YAML.read_text(encoding="utf-8")
    made = written(text, block(results, Reader(YAML).untested()))
    if made != text:
        YAML.write_text(made, encoding="utf-8")
        compiled.anew()
    return 0


if __name__ == "__main__":
    sys.exit(main())
