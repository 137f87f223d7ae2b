"""The commands that go through all tested releases: ``python -m tests.releases hashes`` and ``... backtest``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Callable, List, Optional

from packaging.version import Version

from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Matrix
from tests.releases import backtest, hashes, tree
from tests.releases.registry import Registry
from tests.releases.tree import Tree
from tests.support import compiled


def main(arguments: List[str]) -> int:
    """Run one of the commands; returns the exit code."""
    options = _parser(arguments[0]).parse_args(arguments[1:])
    whole = loader.load()
    toolkits = options.toolkits or [name for name in whole.toolkits if versions(whole, name)]
    with Registry() as registry:
        if arguments[0] == "hashes":
            kept = {
                name: hashes.of(whole, name, versions(whole, name), reader(whole, name, registry, options.trees))
                for name in toolkits
            }
            hashes.write(kept, {name: str(versions(whole, name)[-1]) for name in toolkits})
            compiled.anew()
            return 0
        found = {
            name: backtest.of(whole, name, versions(whole, name), reader(whole, name, registry, options.trees))
            for name in toolkits
        }
    backtest.keep(found, {name: versions(whole, name) for name in found})
    for name, verdicts in found.items():
        counts = ", ".join(f"{number} {outcome}" for outcome, number in backtest.counted(verdicts).items())
        sys.stdout.write(f"{name}: {counts}\n")
    return int(any(each.outcome == backtest.WRONG for verdicts in found.values() for each in verdicts))


def _parser(command: str) -> argparse.ArgumentParser:
    what = {"hashes": hashes.__doc__, "backtest": backtest.__doc__}[command]
    parser = argparse.ArgumentParser(prog=f"python -m tests.releases {command}", description=what)
    parser.add_argument("toolkits", nargs="*", metavar="TOOLKIT", help="some of them [all that were tested]")
    parser.add_argument(
        "--trees",
        type=Path,
        metavar="FOLDER",
        help="a folder with releases that no registry has, as TOOLKIT/VERSION",
    )
    return parser


def versions(whole: Matrix, package: str) -> List[Version]:
    """The tested releases of the distribution that has a package, the oldest first."""
    owners = [name for name, wheel in whole.toolkits.items() if wheel == whole.toolkits[package]]
    rows = [row for row in whole.rows if whole.patches[row.patch].toolkit in owners]
    found = {version for row in rows for version in row.tested}
    newest = whole.newest.get(package)
    return sorted(found | ({Version(newest)} if newest else set()))


def reader(whole: Matrix, package: str, registry: Registry, trees: Optional[Path]) -> Callable[[Version], Tree]:
    """What reads a release: a checkout in a folder, the package that is installed here, or the registry."""
    here = detect.installed_versions(whole).get(package)

    def read(version: Version) -> Tree:
        label = f"{whole.toolkits[package]} {version}"
        if trees is not None and (trees / package / str(version)).is_dir():
            return tree.of_folder(package, label, trees / package / str(version))
        if here == str(version):
            return hashes.installed(package, label)
        return registry.open(package, whole.toolkits[package], version)

    return read
