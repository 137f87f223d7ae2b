"""Compares one release with the tested ones, row by row, and says which rows hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from packaging.version import Version

from ddpfix.cli.drift import compare, examined, patterns, rows, tree
from ddpfix.cli.drift.code import Code
from ddpfix.cli.drift.compare import Place
from ddpfix.cli.drift.tree import DriftError, Tree
from ddpfix.matrix.model import Matrix, Target

HOLDS, LOOK, NOT_COMPARED = "holds", "look", "not compared"
# The setting of patches whose targets are whole modules of models, of which they change what draws for layers.
_LAYERS = "layerdrop"


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

    def release(self, version: Version, files: Tree, against: Optional[Version] = None) -> Dict[str, Any]:
        """What became of each row in a release, as plain data.

        Args:
            version: of the release.
            files: of the release.
            against: the tested release to compare with, in place of the nearest one of each row.

        Raises:
            DriftError: a tested release cannot be had.
        """
        new = Code(files)
        known: Dict[Tuple[object, ...], List[Place]] = {}
        jobs = rows.jobs(self.matrix, self.package, version, against)
        return {
            "toolkit": self.package,
            "version": str(version),
            "kind": "pre-release" if version.is_prerelease else "release",
            "rows": [self._row(job, version, new, known) for job in jobs],
        }

    def _row(
        self, job: rows.Job, version: Version, new: Code, known: Dict[Tuple[object, ...], List[Place]]
    ) -> Dict[str, Any]:
        places: List[Place] = []
        # A tested release is not compared with itself.
        if job.against != version:
            old = self._code(job.against) if job.against is not None else None
            layers = job.patch.setting == _LAYERS
            for target in job.targets:
                # Two rows may expect other parameters of one place.
                key = (job.against, target.module, target.attribute, target.expects, layers)
                if key not in known:
                    known[key] = _target(old, new, target, layers)
                places += known[key]
            if job.patch.examined and old is not None and job.patch.toolkit == self.package:
                places += examined.sources(old, new, job.patch.examined)
        return {
            "patch": job.patch.id,
            "row": f"{job.patch.toolkit} {job.row.versions}",
            "line": job.row.line,
            "position": job.position,
            "against": None if job.against is None else str(job.against),
            "verdict": _verdict(places),
            "places": [place._asdict() for place in places],
        }

    def _code(self, version: Version) -> Code:
        if version not in self._tested:
            self._tested[version] = Code(self._open(version))
        return self._tested[version]


def _target(old: Optional[Code], new: Code, target: Target, layers: bool) -> List[Place]:
    if "*" in target.module or target.attribute == "*":
        return list(patterns.modules(old, new, target, layers))
    return [compare.function(old, new, target)]


def _verdict(places: List[Place]) -> str:
    states = {place.state for place in places}
    if states - set(compare.FINE):
        return LOOK
    return NOT_COMPARED if compare.THERE in states else HOLDS


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
