"""Questions to version specifiers: whether a version is in one, and whether two have a version in common."""

from __future__ import annotations

from functools import lru_cache
from typing import Iterator, List, Optional, Sequence, Tuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version


def holds(specifier: SpecifierSet, version: Version) -> bool:
    """Whether a version satisfies a specifier, pre-releases included."""
    # Without prereleases=True the answer for a release candidate depends on the version of packaging.
    return specifier.contains(version, prereleases=True)


def within(specifier: SpecifierSet, versions: Sequence[Version]) -> List[Version]:
    """Those of the versions that satisfy a specifier, pre-releases included."""
    bounds = _range(specifier)
    if bounds is None:
        return [version for version in versions if holds(specifier, version)]
    first, end = bounds
    # A range between releases, compared with a release, is what packaging would make of it, a hundred times as fast.
    return [
        version
        for version in versions
        if (holds(specifier, version) if version.is_prerelease or version.local else first <= version < end)
    ]


def probes(specifiers: Sequence[SpecifierSet]) -> List[Version]:
    """Versions of which at least one is in all the specifiers, unless no version is.

    The versions that all of them accept begin somewhere, and they begin at a boundary: at the version of some clause,
    or right above it. Clauses with < and > leave out the pre- and post-releases of their own version, so there is more
    than one kind of "right above".
    """
    versions = [Version(clause.version.replace(".*", "")) for specifier in specifiers for clause in specifier]
    depth = max([len(version.release) for version in versions], default=1)
    found = {Version("0.dev0"), Version("0")}
    for version in versions:
        found.update(_versions(str(version), depth))
    return sorted(found)


# Rows of one toolkit begin and end at the same few versions, and parsing these is most of reading the matrix.
@lru_cache(maxsize=None)
def _versions(text: str, depth: int) -> Tuple[Version, ...]:
    # By its text: 1.0 and 1 are equal, and what follows them is not the same.
    return tuple(map(Version, _boundaries(Version(text), depth)))


def _boundaries(version: Version, depth: int) -> Iterator[str]:
    """A version, and what follows it of each kind, with as little in between as versions of ``depth`` numbers allow."""
    base, release = version.base_version, version.release
    epoch = base.rpartition("!")[0] + "!" if version.epoch else ""
    after = epoch + ".".join(map(str, (*release[:-1], release[-1] + 1)))
    right_after = epoch + ".".join(map(str, (*release, *[0] * (depth - len(release)), 1)))
    letter, number = version.pre or ("", 0)
    stem = f"{base}{letter}{number}" if letter else base
    post = -1 if version.post is None else version.post
    finished = stem if post < 0 else f"{stem}.post{post}"
    yield from (str(version), finished)
    next_pre = [f"{base}{letter}{number + 1}"] if letter else []
    for text in (base, after, right_after, f"{stem}.post{post + 1}", *next_pre):
        yield from (text, f"{text}.dev0")
    if version.dev is not None:
        yield f"{finished}.dev{version.dev + 1}"


def meet(one: SpecifierSet, other: SpecifierSet) -> Optional[Version]:
    """A version that satisfies both specifiers, or None if there is none."""
    mine, theirs = _range(one), _range(other)
    if mine is not None and theirs is not None:
        # Nearly all ranges are of this kind, and asking packaging about every probe is most of reading the matrix.
        first, end = max(mine[0], theirs[0]), min(mine[1], theirs[1])
        return first if first < end else None
    return next((v for v in probes([one, other]) if holds(one, v) and holds(other, v)), None)


def _range(specifier: SpecifierSet) -> Optional[Tuple[Version, Version]]:
    """(first, end) of a specifier of the form ``>=first,<end`` with final releases; None for any other."""
    bounds = {clause.operator: clause.version for clause in specifier}
    if len(specifier) != 2 or set(bounds) != {">=", "<"}:
        return None
    first, end = Version(bounds[">="]), Version(bounds["<"])
    return None if any(v.is_prerelease or v.is_postrelease or v.local for v in (first, end)) else (first, end)
