"""Compares releases of the toolkits with those that were tested, without installing or importing them.

Without a command, the newest release of each toolkit: which fixes rely on code that has changed since the newest tested
one. The exit code is 0 if there are none, 1 if there are some, and 2 for bad input. ``hashes`` and ``backtest`` go
through all tested releases: the first records what fixes rely on, the second tries the rule for untested releases.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Callable, List, Optional

from packaging.version import Version

from ddpfix import _env
from ddpfix.matrix import detect, loader
from ddpfix.matrix.model import Matrix
from tests.releases import backtest, hashes
from tests.releases.code import ReleaseError, Tree, of_folder
from tests.releases.registry import Registry
from tests.support import compiled


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser(words).parse_args(words)
    whole = loader.load()
    with Registry() as registry:
        try:
            return {"hashes": _hashes, "backtest": _backtest}.get(words[0] if words else "", _newest)(
                whole, registry, options
            )
        except ReleaseError as error:
            _env.say(str(error))
            return 2


def _parser(words: List[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    if words[:1] in (["hashes"], ["backtest"]):
        parser.add_argument("command")
    parser.add_argument("toolkits", nargs="*", metavar="TOOLKIT", help="some of them [all]; also TOOLKIT==VERSION")
    parser.add_argument("--trees", type=Path, metavar="FOLDER", help="releases on no registry, as TOOLKIT/VERSION")
    return parser


def _newest(whole: Matrix, registry: Registry, options: argparse.Namespace) -> int:
    changed = 0
    for word in options.toolkits or list(whole.newest):
        package, _, version = word.partition("==")
        package = _toolkit(whole, package)
        asked = [_version(version)] if "==" in word else registry.newest(whole.toolkits[package])
        if not asked:
            sys.stdout.write(f"{package} is on no registry: {package}==VERSION --trees FOLDER\n")
        read = reader(whole, package, registry, options.trees)
        for release in asked:
            changed += backtest.show(whole, package, (versions(whole, package)[-1], release), read)
    return int(changed > 0)


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
    return [_toolkit(whole, name) for name in options.toolkits or whole.toolkits if versions(whole, name)]


def _toolkit(whole: Matrix, name: str) -> str:
    if name not in whole.toolkits or not versions(whole, name):
        raise ReleaseError(f"{name!r} is no toolkit with tested releases; expected {', '.join(whole.newest)}")
    return name


def _version(text: str) -> Version:
    try:
        return Version(text)
    except ValueError:
        raise ReleaseError(f"{text[:40]!r} is not a version; write it like 1.4.16") from None


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
