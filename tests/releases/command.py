"""The command: which releases are to be compared, and what is printed about them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from ddpfix import _env

if TYPE_CHECKING:
    from packaging.version import Version

    from ddpfix.matrix.model import Matrix
    from tests.releases.registry import Registry
    from tests.releases.tree import Tree


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return _tested(words) if words[:1] in (["hashes"], ["backtest"]) else _run(_parser().parse_args(words))


def _tested(words: List[str]) -> int:
    from tests.releases import tested
    from tests.releases.tree import DriftError

    try:
        return tested.main(words)
    except DriftError as error:
        _env.say(str(error))
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.releases",
        description="Compares releases of the toolkits with the tested ones, without installing or importing them."
        " The exit code is 0 if all rows of the matrix hold, 1 if some need a look, 2 for bad input."
        " 'hashes' and 'backtest' go through all tested releases instead (hashes --help, backtest --help).",
    )
    parser.add_argument(
        "release",
        nargs="?",
        metavar="TOOLKIT[==VERSION]",
        help="a release; without a version the newest one, and a pre-release that is newer [all toolkits]",
    )
    parser.add_argument("--from", dest="path", type=Path, metavar="PATH", help="a folder, wheel or sdist with it")
    parser.add_argument("--against", metavar="VERSION", help="compare with this release, by the rows that are for it")
    parser.add_argument("--against-from", type=Path, metavar="PATH", help="a folder, wheel or sdist with that one")
    parser.add_argument("--inside", action="store_true", help="also the releases inside of rows that are not tested")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(options: argparse.Namespace) -> int:
    from tests.releases.tree import DriftError

    try:
        return _compared(options)
    except DriftError as error:
        _env.say(str(error))
        return 2


def _compared(options: argparse.Namespace) -> int:
    from ddpfix.matrix import loader
    from tests.releases import screen
    from tests.releases.registry import Registry

    with Registry() as registry:
        whole = _Run(loader.load(), registry, options).all()
        screen.show(whole, options.json)
    return 1 if any(row["verdict"] != "holds" for release in whole["releases"] for row in release["rows"]) else 0


class _Run:
    """The releases that a command line stands for."""

    def __init__(self, matrix: Matrix, registry: Registry, options: argparse.Namespace) -> None:
        self.matrix, self.registry, self.options = matrix, registry, options
        self.against = _version(options.against) if options.against else None
        self.notes: List[str] = []

    def all(self) -> Dict[str, Any]:
        """Everything as plain data; raises DriftError."""
        package, version = self._named()
        self._refuse_what_makes_no_sense(package, version)
        releases: List[Dict[str, Any]] = []
        for toolkit in [package] if package else self.matrix.toolkits:
            releases += self._toolkit(toolkit, version, asked=package is not None)
        return {"releases": releases, "notes": self.notes}

    def _named(self) -> Tuple[Optional[str], Optional[Version]]:
        """The toolkit and the version that were asked for."""
        from tests.releases.tree import DriftError

        if not self.options.release:
            return None, None
        name, equal, version = (part.strip() for part in self.options.release.partition("=="))
        names = {each.lower(): each for each in self.matrix.toolkits}
        names.update({each.lower(): toolkit for toolkit, each in self.matrix.toolkits.items()})
        if name.lower() not in names:
            raise DriftError(f"{name!r} is no toolkit of the matrix; expected {', '.join(self.matrix.toolkits)}")
        return names[name.lower()], _version(version) if equal else None

    def _refuse_what_makes_no_sense(self, package: Optional[str], version: Optional[Version]) -> None:
        from tests.releases.tree import DriftError

        if self.options.path is not None and version is None:
            raise DriftError("--from needs the release beside it, written like funasr==1.4.16")
        if self.options.against_from is not None and self.against is None:
            raise DriftError("--against-from needs --against beside it, which says what release that is")
        if self.against is not None and package is None:
            raise DriftError("--against needs a toolkit, written like funasr==1.4.16")

    def _toolkit(self, package: str, version: Optional[Version], asked: bool) -> Iterator[Dict[str, Any]]:
        from tests.releases import rows
        from tests.releases.tree import DriftError
        from tests.releases.watch import Watch

        known = [] if self.options.path is not None else self.registry.versions(self.matrix.toolkits[package])
        if not known and self.options.path is None:
            if asked:
                raise DriftError(f"{package} is on no registry; --from names a folder with it")
            self.notes.append(f"{package} is on no registry: {package}==VERSION --from FOLDER compares a checkout")
            return
        if not asked and not rows.tested_versions(self.matrix, package):
            self.notes.append(f"{package} is no toolkit with tested releases: {package} --against VERSION")
            return
        untested = rows.untested(self.matrix, package, known)
        chosen = [version] if version is not None else _newest(known)
        if self.options.inside:
            chosen = sorted({*chosen, *untested})
        watch = Watch(self.matrix, package, lambda tested: self._tested(package, tested))
        for each in chosen:
            files = self._files(package, each)
            yield {**watch.release(each, files, self.against), "untested": [str(one) for one in untested]}
        self.notes += [f"nothing is compared with {package} {one}: {why}" for one, why in watch.missing.items()]

    def _files(self, package: str, version: Version) -> Tree:
        from tests.releases import watch

        distribution = self.matrix.toolkits[package]
        if self.options.path is not None:
            return watch.read_path(package, f"{distribution} {version}", self.options.path)
        return self.registry.open(package, distribution, version)

    def _tested(self, package: str, version: Version) -> Tree:
        from tests.releases import watch

        distribution = self.matrix.toolkits[package]
        if version == self.against and self.options.against_from is not None:
            return watch.read_path(package, f"{distribution} {version}", self.options.against_from)
        return self.registry.open(package, distribution, version)


def _newest(versions: List[Version]) -> List[Version]:
    """The newest release, and the newest pre-release where it is newer."""
    releases = [each for each in versions if not each.is_prerelease]
    return sorted({*releases[-1:], *versions[-1:]})


def _version(text: str) -> Version:
    from packaging.version import Version

    from tests.releases.tree import DriftError

    try:
        return Version(text)
    except ValueError:
        raise DriftError(f"{text[:40]!r} is not a version; write it like 1.4.16") from None
