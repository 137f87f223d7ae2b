"""The matrix as JSON, which is in the wheel beside the YAML: a process that trains reads it in a tenth of the time.

It holds what was read from the YAML when the wheel was built, and the YAML's digest: where that does not fit, because
somebody has edited the file, the YAML is read. Rows become objects when they are asked for, because most of them are
about toolkits that are not installed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddpfix.matrix.model import Mark, Matrix, Patch, Row, Target

NAME = "compat_matrix.json"


def dump(matrix: Matrix, yaml: bytes) -> str:
    """The matrix as JSON.

    Args:
        matrix: read from ``yaml``, thoroughly.
        yaml: the text of the file.
    """
    whole = {
        "digest": _digest(yaml),
        "toolkits": dict(matrix.toolkits),
        "version_files": dict(matrix.version_files),
        "marks": {toolkit: [asdict(mark) for mark in marks] for toolkit, marks in matrix.marks.items()},
        "patches": [asdict(patch) for patch in matrix.patches.values()],
        "rows": [_plain(row) for row in matrix.rows],
    }
    return json.dumps(whole, separators=(",", ":"))


def load(path: Path, yaml: Path) -> Optional[Matrix]:
    """The matrix, or None where the file is not there or was not made from this YAML."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole["digest"] != _digest(yaml.read_bytes()):
            return None
        patches = [Patch(**_tuples(patch)) for patch in whole["patches"]]
        marks = {toolkit: tuple(Mark(**_tuples(mark)) for mark in found) for toolkit, found in whole["marks"].items()}
        rows = Rows(whole["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    by_id = {patch.id: patch for patch in patches}
    return Matrix(whole["toolkits"], by_id, rows, whole["version_files"], marks)


class Rows(Sequence[Row]):
    """Rows that are made of plain data when they are asked for.

    Args:
        plain: as :func:`dump` has written them.
    """

    def __init__(self, plain: Sequence[Dict[str, Any]]) -> None:
        self._plain = plain
        self._made: Dict[int, Row] = {}
        self._of: Dict[str, List[int]] = {}
        for number, row in enumerate(plain):
            self._of.setdefault(row["patch"], []).append(number)

    def of(self, patch: str) -> List[Row]:
        """The rows of one patch, in the file's order."""
        return [self._row(number) for number in self._of.get(patch, ())]

    def _row(self, number: int) -> Row:
        if number not in self._made:
            self._made[number] = _made(self._plain[number])
        return self._made[number]

    def __len__(self) -> int:
        return len(self._plain)

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self._plain))[index]
        return self._row(numbers) if isinstance(numbers, int) else [self._row(number) for number in numbers]

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self._plain)))


def _digest(yaml: bytes) -> str:
    return hashlib.sha256(yaml).hexdigest()


def _plain(row: Row) -> Dict[str, Any]:
    return {
        "patch": row.patch,
        "versions": str(row.versions),
        "status": row.status,
        "targets": [asdict(target) for target in row.targets],
        "tested": [str(version) for version in row.tested],
        "why": row.why,
        "line": row.line,
    }


def _made(plain: Dict[str, Any]) -> Row:
    return Row(
        patch=plain["patch"],
        versions=SpecifierSet(plain["versions"]),
        status=plain["status"],
        targets=tuple(Target(**_tuples(target)) for target in plain["targets"]),
        tested=tuple(Version(version) for version in plain["tested"]),
        why=plain["why"],
        line=plain["line"],
    )


def _tuples(plain: Dict[str, Any]) -> Dict[str, Any]:
    """JSON has no tuples, of which all sequences of the matrix are."""
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _tuple(values: List[Any]) -> Tuple[Any, ...]:
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values)
