"""Compares one release with the tested ones, row by row, and says which rows hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from packaging.version import Version

from ddpfix.matrix.model import Matrix, Target
from tests.releases import compare, examined, patterns, rows, tree
from tests.releases.code import Code
from tests.releases.compare import Place
from tests.releases.tree import DriftError, Tree

HOLDS, LOOK, NOT_COMPARED = "holds", "look", "not compared"
# The setting of patches whose targets are whole modules of models, of which they change what draws for layers.
_LAYERS = "layerdrop"
# Tested releases that are kept in memory.
_KEPT = 4
# What was found already, by the tested releases and the place.
_Known = Dict[Tuple[object, ...], List[Place]]


class Watch:
    """The comparisons of one package; what two rows share is compared once.

    Args:
        matrix: the matrix.
        package: a toolkit of it.
        open_tested: the files of a tested release.
    """

    def __init__(self, matrix: Matrix, package: str, open_tested: Callable[[Version], Tree]) -> None:
        self.matrix, self.package, self._open = matrix, package, open_tested
        self._tested: Dict[Version, Code] = {}
        # By the tested releases that cannot be had, why.
        self.missing: Dict[Version, str] = {}

    def release(self, version: Version, files: Tree, against: Optional[Version] = None) -> Dict[str, Any]:
        """What became of each row in a release, as plain data.

        Args:
            version: of the release.
            files: of the release.
            against: the tested release to compare with, in place of the nearest one of each row.

        A tested release that cannot be had is noted in ``missing``, and left out.

        Raises:
            DriftError: the release ``against`` cannot be had.
        """
        new = Code(files)
        if against is not None and self._code(against) is None:
            raise DriftError(self.missing[against])
        known: _Known = {}
        jobs = rows.jobs(self.matrix, self.package, version, against)
        return {
            "toolkit": self.package,
            "version": str(version),
            "kind": "pre-release" if version.is_prerelease else "release",
            "rows": [self._row(job, version, new, known) for job in jobs],
        }

    def _row(self, job: rows.Job, version: Version, new: Code, known: _Known) -> Dict[str, Any]:
        # A tested release is not compared with itself.
        compared = job.against != (version,)
        places = self._places(job, new, known) if compared else []
        return {
            "patch": job.patch.id,
            "row": f"{job.patch.toolkit} {job.row.versions}",
            "line": job.row.line,
            "position": job.position,
            "against": [str(each) for each in job.against if each not in self.missing],
            "verdict": _verdict(places),
            "places": [place._asdict() for place in places],
        }

    def _places(self, job: rows.Job, new: Code, known: _Known) -> List[Place]:
        layers = job.patch.setting == _LAYERS
        found: List[Place] = []
        for target in job.targets:
            # Two rows may expect other parameters of one place.
            key = (job.against, target.module, target.attribute, target.expects, layers)
            if key not in known:
                known[key] = self._best(job, lambda old, at=target: _target(old, new, at, layers))  # type: ignore[misc]
            found += known[key]
        if job.patch.examined and job.against and job.patch.toolkit == self.package:
            found += self._best(job, lambda old: examined.sources(old, new, job.patch.examined))
        return found

    def _best(self, job: rows.Job, look: Callable[[Optional[Code]], List[Place]]) -> List[Place]:
        """What a look says; a place that is as in any of the tested releases is the same."""
        tested = [version for version in job.against if self._code(version) is not None]
        found = look(self._code(tested[0]) if tested else None)
        for version in tested[1:] if _to_look_at(found) else ():
            other = {place.at: place for place in look(self._code(version))}
            # Of a pattern, only what is not the same has a place of its own.
            found = [
                other.get(place.at, place._replace(state=compare.SAME, message="", diff=""))
                if place.at not in other or other[place.at].state in compare.FINE
                else place
                for place in found
            ]
        return found

    def _code(self, version: Version) -> Optional[Code]:
        """A tested release; None where it cannot be had."""
        if version not in self._tested and version not in self.missing:
            # The parsed modules of a large toolkit take hundreds of megabytes.
            while len(self._tested) >= _KEPT:
                del self._tested[next(iter(self._tested))]
            try:
                self._tested[version] = Code(self._open(version))
            except DriftError as error:
                self.missing[version] = str(error)
        return self._tested.get(version)


def _target(old: Optional[Code], new: Code, target: Target, layers: bool) -> List[Place]:
    if "*" in target.module or target.attribute == "*":
        return list(patterns.modules(old, new, target, layers))
    return [compare.function(old, new, target)]


def _to_look_at(places: List[Place]) -> bool:
    return any(place.state not in compare.FINE for place in places)


def _verdict(places: List[Place]) -> str:
    if _to_look_at(places):
        return LOOK
    return NOT_COMPARED if any(place.state == compare.THERE for place in places) else HOLDS


def read_path(package: str, label: str, path: Path) -> Tree:
    """The files of a release that is at hand: a folder, a wheel or an sdist; raises DriftError."""
    try:
        if path.is_dir():
            return tree.of_folder(package, label, path)
        if path.is_file():
            return tree.of_archive(package, label, path)
    except (OSError, ValueError) as error:
        if isinstance(error, DriftError):
            raise
        raise DriftError(f"{path} cannot be read: {error}") from None
    raise DriftError(f"{path} is neither a folder nor a file")
