"""Reads the part ``tested:`` of the matrix, which is generated, and gives each row what was tested of its range."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterable, List, Mapping, Sequence, Tuple

from packaging.version import Version

from ddpfix.matrix.compiling.nodes import Node
from ddpfix.matrix.compiling.rows import CURED
from ddpfix.matrix.model import Matrix, MatrixError, Row
from ddpfix.matrix.ranges import within

HOW = "python -m tests.support.tested writes this part from tests/results"


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


def with_tested(untested: Matrix, node: Node, is_complete: bool) -> Matrix:
    """Return the matrix with what was tested.

    Args:
        untested: the matrix without.
        node: the part ``tested:``.
        is_complete: whether the part is checked against the rows.

    Raises:
        MatrixError: the part names something unknown, or a row with the status cured was never tested.
    """
    by_toolkit: Dict[str, Tested] = {}
    for toolkit, entry in node.mapping(optional=None).items():
        _refuse_unknown("toolkit", toolkit, entry, untested.toolkits)
        by_toolkit[toolkit] = _toolkit(toolkit, entry, untested, is_complete)
    nothing = Tested()
    rows = tuple(
        row._replace(tested=by_toolkit.get(_toolkit_of(untested, row), nothing).of(row)) for row in untested.rows
    )
    for row in rows if is_complete else ():
        if row.status == CURED and not row.tested:
            message = (
                f"no version of this row of {row.patch} was tested; python -m tests.support.tested --here"
                f" {_toolkit_of(untested, row)} runs its tests on what is installed here, and notes that"
            )
            raise MatrixError(f"{node.path}:{row.line}: {message}")
    return untested._replace(rows=rows)


def _refuse_unknown(what: str, name: str, node: Node, known: Iterable[str]) -> None:
    if name not in known:
        node.fail(f"{what} {name!r} is not known; accepted are {', '.join(known)}")


def _toolkit_of(whole: Matrix, row: Row) -> str:
    return whole.patches[row.patch].toolkit


def _toolkit(toolkit: str, node: Node, whole: Matrix, is_complete: bool) -> Tested:
    entry = node.mapping(required=("versions",), optional=("except",))
    rows = [row for row in whole.rows if _toolkit_of(whole, row) == toolkit]
    versions = _versions(entry["versions"])
    for version in versions if is_complete else ():
        if not any(within(row.versions, (version,)) for row in rows):
            entry["versions"].fail(f"{version} is tested, but no row of {toolkit} contains it; {HOW}")
    but: Dict[str, FrozenSet[Version]] = {}
    for patch, item in entry["except"].mapping(optional=None).items() if "except" in entry else ():
        own = [name for name in whole.patches if whole.patches[name].toolkit == toolkit]
        _refuse_unknown(f"patch of {toolkit}", patch, item, own)
        left_out = _versions(item)
        if is_complete:
            _refuse_exceptions_of_nothing(patch, item, left_out, versions, rows)
        but[patch] = frozenset(left_out)
    return Tested(tuple(versions), but)


def _refuse_exceptions_of_nothing(
    patch: str, node: Node, left_out: Sequence[Version], versions: Sequence[Version], rows: Sequence[Row]
) -> None:
    cured = [row for row in rows if row.patch == patch and row.status == CURED]
    for version in left_out:
        if version not in versions or not any(within(row.versions, (version,)) for row in cured):
            node.fail(f"{version} is no tested version that a row of {patch} cures, so it is no exception; {HOW}")


def _versions(node: Node) -> List[Version]:
    found = [item.version() for item in node.items()]
    if not found:
        node.fail(f"at least one version is expected here; {HOW}")
    if found != sorted(set(found)):
        node.fail(f"the versions do not ascend; {HOW}")
    return found
