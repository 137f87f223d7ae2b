"""Reads the part ``tested:`` of the matrix, which is generated, and gives each row what was tested of its range."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterable, Mapping, Tuple

from packaging.version import Version

from ddpfix.matrix.compiling.nodes import Node
from ddpfix.matrix.compiling.rows import CURED
from ddpfix.matrix.model import Matrix, Row
from ddpfix.matrix.ranges import within


@dataclass(frozen=True)
class Tested:
    """The versions of a toolkit that were tested, and by patch the ones on which its tests were not run."""

    versions: Tuple[Version, ...] = ()
    but: Mapping[str, FrozenSet[Version]] = field(default_factory=dict)

    def of(self, row: Row) -> Tuple[Version, ...]:
        """Return the tested versions of a row; a row with another status than cured has none."""
        if row.status != CURED:
            return ()
        left_out = self.but.get(row.patch, frozenset())
        return tuple(version for version in within(row.versions, self.versions) if version not in left_out)


def with_tested(untested: Matrix, node: Node) -> Matrix:
    """Return the matrix with what was tested.

    Args:
        untested: the matrix without.
        node: the part ``tested:``.

    Raises:
        MatrixError: the part names something unknown.
    """
    by_toolkit: Dict[str, Tested] = {}
    for toolkit, entry in node.mapping(optional=None).items():
        _refuse_unknown("toolkit", toolkit, entry, untested.toolkits)
        by_toolkit[toolkit] = _toolkit(toolkit, entry, untested)
    nothing = Tested()
    rows = tuple(
        row._replace(tested=by_toolkit.get(untested.patches[row.patch].toolkit, nothing).of(row))
        for row in untested.rows
    )
    newest = {untested.toolkits[toolkit]: str(max(found.versions)) for toolkit, found in by_toolkit.items()}
    # The packages of one distribution have its releases.
    shared = {name: newest[wheel] for name, wheel in untested.toolkits.items() if wheel in newest}
    return untested._replace(rows=rows, newest=shared)


def _refuse_unknown(what: str, name: str, node: Node, known: Iterable[str]) -> None:
    if name not in known:
        node.fail(f"{what} {name!r} is not known; expected {', '.join(known)}")


def _toolkit(toolkit: str, node: Node, whole: Matrix) -> Tested:
    entry = node.mapping(required=("versions",), optional=("except",))
    own = [name for name, patch in whole.patches.items() if patch.toolkit == toolkit]
    but: Dict[str, FrozenSet[Version]] = {}
    for patch, item in entry["except"].mapping(optional=None).items() if "except" in entry else ():
        _refuse_unknown(f"patch of {toolkit}", patch, item, own)
        but[patch] = frozenset(_versions(item))
    return Tested(_versions(entry["versions"]), but)


def _versions(node: Node) -> Tuple[Version, ...]:
    found = tuple(item.version() for item in node.items())
    if not found:
        node.fail("at least one version is expected here; python -m tests.support.tested writes this part")
    return found
