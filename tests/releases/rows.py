"""Which rows of the matrix a release is compared by, and with which tested release."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from packaging.version import Version

from ddpfix.matrix.compiling.rows import CURED
from ddpfix.matrix.model import Matrix, Patch, Row, Target

TESTED, INSIDE, OUTSIDE = "tested", "inside", "outside"


class Job(NamedTuple):
    """One row, and what of it is to be compared.

    Attributes:
        patch: its patch.
        row: the row.
        position: whether the release is tested, inside of the row and not tested, or outside of it.
        against: the tested releases that it is compared with, the older one first: a place holds where it is as in
            one of them. None is known where there is none.
        targets: those in the package.
    """

    patch: Patch
    row: Row
    position: str
    against: Tuple[Version, ...]
    targets: Tuple[Target, ...]


def jobs(matrix: Matrix, package: str, version: Version, against: Optional[Version] = None) -> List[Job]:
    """The rows that have something in a package, as far as they are for a release.

    A release behind the last row of a patch is compared by that row, because that is the one to be made longer. Where
    the row for a release has nothing to compare, because nothing is fixed there, it is left out.

    Args:
        matrix: the matrix.
        package: a toolkit of it.
        version: the release.
        against: the release to compare with; its rows count. By default the nearest tested one of each row.
    """
    found: List[Job] = []
    for patch in matrix.patches.values():
        own = patch.toolkit == package
        rows = _own(matrix.rows_of(patch.id), against or version) if own else _foreign(matrix.rows_of(patch.id))
        for row in rows:
            targets = tuple(target for target in places(patch, row) if target.module.partition(".")[0] == package)
            if targets or (own and patch.examined):
                tested = row.tested if own else tested_versions(matrix, package)
                position = _position(row, version, tested, own)
                found.append(Job(patch, row, position, (against,) if against else neighbours(tested, version), targets))
    return _once(found)


def _own(rows: Sequence[Row], version: Version) -> List[Row]:
    """The row that a version is in, or the last one in front of it; none where nothing is fixed there."""
    inside = next((row for row in rows if row.versions.holds(version)), None)
    if inside is None:
        # By where they begin: a candidate of the first release behind a row is older than its end.
        before = [row for row in rows if row.versions.begin is None or Version(row.versions.begin) <= version]
        inside = before[-1] if before else None
    return [inside] if inside is not None and inside.status == CURED else []


def _foreign(rows: Sequence[Row]) -> List[Row]:
    """The rows of another toolkit's patch, which are for versions of that."""
    return [row for row in rows if row.status == CURED]


def _once(found: List[Job]) -> List[Job]:
    """Rows of another toolkit often share a place of this one: each place of a patch is compared once."""
    seen: Set[Tuple[str, Target]] = set()
    kept = []
    for job in found:
        targets = tuple(target for target in job.targets if (job.patch.id, target) not in seen)
        seen.update((job.patch.id, target) for target in targets)
        if targets or job.patch.examined:
            kept.append(job._replace(targets=targets))
    return kept


def places(patch: Patch, row: Row) -> Iterator[Target]:
    """The targets of a row, and what the patch changes beside them, as far as that is written like one."""
    yield from row.targets
    known = {str(target) for target in row.targets}
    for text in patch.also:
        module, colon, attribute = text.partition(":")
        if colon and " " not in text and "*" not in text and text not in known:
            yield Target(module, attribute)


def _position(row: Row, version: Version, tested: Sequence[Version], own: bool) -> str:
    if Version(version.public) in tested:
        return TESTED
    return INSIDE if not own or row.versions.holds(version) else OUTSIDE


def neighbours(tested: Sequence[Version], version: Version) -> Tuple[Version, ...]:
    """The newest tested version up to a version, and the first one after it; a tested version has itself alone."""
    before = [each for each in tested if each <= version]
    after = [each for each in tested if each > version]
    if before and max(before) == Version(version.public):
        return (max(before),)
    return (*([max(before)] if before else []), *([min(after)] if after else []))


def tested_versions(matrix: Matrix, package: str) -> List[Version]:
    """The versions of a toolkit on which any patch was tested."""
    own = [row for name, patch in matrix.patches.items() if patch.toolkit == package for row in matrix.rows_of(name)]
    return sorted({version for row in own for version in row.tested})


def untested(matrix: Matrix, package: str, versions: Sequence[Version]) -> List[Version]:
    """The releases for which some fix is applied, and on which nothing was tested."""
    own = [row for name, patch in matrix.patches.items() if patch.toolkit == package for row in matrix.rows_of(name)]
    cured = [row for row in own if row.status == CURED]
    tested = set(tested_versions(matrix, package))
    return [each for each in versions if each not in tested and any(row.versions.holds(each) for row in cured)]
