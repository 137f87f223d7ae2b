"""Reads the tested releases of the toolkits, without installing or importing them.

``hashes`` records in the matrix what fixes rely on; ``backtest`` tries the rule for untested releases on each. The
exit code is 1 if it would have applied a fix wrongly, and 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Callable, List, Optional

from packaging.version import Version

from ddpfix import _switch
from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Matrix
from tests.releases import backtest, hashes
from tests.releases.code import ReleaseError, Tree, of_folder
from tests.releases.registry import Registry
from tests.support import compiled


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    parser.add_argument("command", choices=("hashes", "backtest"))
    parser.add_argument("toolkits", nargs="*", metavar="TOOLKIT", help="some of them [all]")
    parser.add_argument("--trees", type=Path, metavar="FOLDER", help="releases on no registry, as TOOLKIT/VERSION")
    options = parser.parse_args(arguments)
    with Registry() as registry:
        try:
            return (_hashes if options.command == "hashes" else _backtest)(loader.load(), registry, options)
        except ReleaseError as error:
            _switch.say(str(error))
            return 2


def _hashes(whole: Matrix, registry: Registry, options: argparse.Namespace) -> int:
    toolkits = _tested(whole, options)
    kept = {
        name: hashes.of(whole, name, versions(whole, name), reader(whole, name, registry, options.trees))
        for name in toolkits
    }
    hashes.write(kept, {name: str(versions(whole, name)[-1]) for name in toolkits})
    compiled.anew()
    return 0


def _backtest(whole: Matrix, registry: Registry, options: argparse.Namespace) -> int:
    found = {
        name: backtest.of(whole, name, versions(whole, name), reader(whole, name, registry, options.trees))
        for name in _tested(whole, options)
    }
    backtest.keep(found, {name: versions(whole, name) for name in found})
    for name, verdicts in found.items():
        counts = ", ".join(f"{number} {outcome}" for outcome, number in backtest.counted(verdicts).items())
        sys.stdout.write(f"{name}: {counts}\n")
    return int(any(each.outcome == backtest.WRONG for verdicts in found.values() for each in verdicts))


def _tested(whole: Matrix, options: argparse.Namespace) -> List[str]:
    for name in options.toolkits:
        if name not in whole.newest:
            raise ReleaseError(f"{name!r} is no toolkit with tested releases; expected {', '.join(whole.newest)}")
    return [name for name in options.toolkits or whole.toolkits if versions(whole, name)]


def versions(whole: Matrix, package: str) -> List[Version]:
    """The tested releases of the distribution that has a package, the oldest first."""
    owners = [name for name, wheel in whole.toolkits.items() if wheel == whole.toolkits.get(package)]
    rows = [row for row in whole.rows if whole.patches[row.patch].toolkit in owners]
    found = {version for row in rows for version in row.tested}
    latest = whole.newest.get(package)
    return sorted(found | ({Version(latest)} if latest else set()))


def reader(whole: Matrix, package: str, registry: Registry, trees: Optional[Path]) -> Callable[[Version], Tree]:
    """What reads a release: a checkout in a folder, the package that is installed here, or the registry."""
    here = detect.installed_versions(whole).get(package)

    def read(version: Version) -> Tree:
        label = f"{whole.toolkits[package]} {version}"
        if trees is not None and (trees / package / str(version)).is_dir():
            return of_folder(package, label, trees / package / str(version))
        if here == str(version):
            return hashes.installed(package, label)
        return registry.open(package, whole.toolkits[package], version)

    return read


if __name__ == "__main__":
    sys.exit(main())
