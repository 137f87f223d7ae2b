"""Ranges of versions, one for each row: from one version up to another, which is excluded.

They are compared as packaging's specifiers ``>=begin,<end`` are (a property test says so); packaging.specifiers takes
three milliseconds to import, in every process that trains.
"""

from __future__ import annotations

from functools import lru_cache
from typing import List, NamedTuple, Optional, Sequence

from packaging.version import Version


class Range(NamedTuple):
    """The versions of one row, pre-releases included.

    Attributes:
        begin: the first version; None: there is none before.
        end: the first version that is not in it, and neither are its pre-releases.
    """

    begin: Optional[str]
    end: str

    def __str__(self) -> str:
        return f"<{self.end}" if self.begin is None else f"<{self.end},>={self.begin}"

    def __contains__(self, version: object) -> bool:
        return isinstance(version, Version) and self.holds(version)

    def holds(self, version: Version) -> bool:
        """Return whether a version is in this range."""
        # Builds of one release differ in the local part only.
        public = parsed(version.public) if version.local else version
        if self.begin is not None and public < parsed(self.begin):
            return False
        end = parsed(self.end)
        if not version < end:
            return False
        # 2.0rc1 is a candidate of 2.0.0 as well.
        of_the_end = version.is_prerelease and parsed(version.base_version) == parsed(end.base_version)
        return end.is_prerelease or not of_the_end

    def is_empty(self) -> bool:
        """Return whether no version can be in this range."""
        # Where its first version is left out as a pre-release of its end, so are all others.
        return not self.holds(parsed(self.begin or "0.dev0"))


# Rows of one toolkit begin and end at the same few versions.
@lru_cache(maxsize=None)
def parsed(text: str) -> Version:
    """Return the version that a text stands for; raise InvalidVersion."""
    return Version(text)


def within(versions: Range, known: Sequence[Version]) -> List[Version]:
    """Return the known versions that are in a range."""
    return [version for version in known if versions.holds(version)]
