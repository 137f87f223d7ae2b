"""The matrix as JSON, which is in the wheel beside the YAML: a process that trains reads it in a tenth of the time.

It holds what was read from the YAML when the wheel was built, and the YAML's digest: where that does not fit, because
somebody has edited the file, the YAML is read. The first line is the digest of the rest: rows are read long after it
was decided which of the two files counts, too late to find that one is damaged. They become objects when they are first
read, because most of them are about toolkits that are not installed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ddpfix.matrix.model import Gate, Mark, Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range, parsed

NAME = "compat_matrix.json"


def dump(matrix: Matrix, yaml: bytes) -> str:
    """Return the matrix as JSON.

    Args:
        matrix: read from ``yaml``, thoroughly.
        yaml: the text of the file.
    """
    whole = {
        "digest": _digest(yaml),
        "toolkits": dict(matrix.toolkits),
        "version_files": dict(matrix.version_files),
        "order": list(matrix.order),
        "gate": {"places": [target._asdict() for target in matrix.gate.places], "passed": matrix.gate.passed},
        "marks": {toolkit: [mark._asdict() for mark in marks] for toolkit, marks in matrix.marks.items()},
        "patches": [
            {
                **patch._asdict(),
                "instead": dict(patch.instead),
                "examined": dict(patch.examined),
                "rows": [_plain(row) for row in matrix.rows_of(patch.id)],
            }
            for patch in matrix.patches.values()
        ],
    }
    text = json.dumps(whole, separators=(",", ":"))
    return f"{_digest(text.encode())}\n{text}"


def load(path: Path, yaml: Path) -> Optional[Matrix]:
    """Return the matrix, or None where the file is not there or was not made from this YAML."""
    try:
        return of(path.read_bytes(), yaml.read_bytes())
    except OSError:
        return None


def of(compiled: bytes, yaml: bytes) -> Optional[Matrix]:
    """Return the matrix from the contents of both files; None where the first was not made from the second."""
    try:
        own, _, text = compiled.partition(b"\n")
        if own.decode("ascii") != _digest(text):
            return None
        whole = json.loads(text)
        if whole["digest"] != _digest(yaml):
            return None
        rows = Rows({patch["id"]: patch.pop("rows") for patch in whole["patches"]})
        patches = [Patch(**{**_tuples(patch), "examined": _tuples(patch["examined"])}) for patch in whole["patches"]]
        marks = {toolkit: tuple(Mark(**_tuples(mark)) for mark in plain) for toolkit, plain in whole["marks"].items()}
        order = tuple(whole["order"])
        places = tuple(Target(**_tuples(target)) for target in whole["gate"]["places"])
        gate = Gate(places, whole["gate"]["passed"])
        by_id = {patch.id: patch for patch in patches}
        return Matrix(whole["toolkits"], by_id, rows, whole["version_files"], marks, order, gate)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class Rows(Sequence[Row]):
    """Rows that are made of plain data when they are first read.

    Args:
        plain: the rows of each patch, as :func:`dump` has written them.
    """

    def __init__(self, plain: Dict[str, List[Dict[str, Any]]]) -> None:
        self._plain = plain
        self._made: Dict[str, List[Row]] = {}

    def of(self, patch: str) -> List[Row]:
        """Return the rows of one patch, in the file's order."""
        if patch not in self._made:
            self._made[patch] = [_made(patch, row) for row in self._plain.get(patch, ())]
        return self._made[patch]

    def __len__(self) -> int:
        return sum(map(len, self._plain.values()))

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Row]:
        return (row for patch in self._plain for row in self.of(patch))


def _digest(yaml: bytes) -> str:
    return hashlib.sha256(yaml).hexdigest()


def _plain(row: Row) -> Dict[str, Any]:
    return {
        "versions": list(row.versions),
        "status": row.status,
        "targets": [target._asdict() for target in row.targets],
        "tested": [str(version) for version in row.tested],
        "why": row.why,
        "line": row.line,
    }


def _made(patch: str, plain: Dict[str, Any]) -> Row:
    return Row(
        patch=patch,
        versions=Range(*plain["versions"]),
        status=plain["status"],
        targets=tuple(Target(**_tuples(target)) for target in plain["targets"]),
        tested=tuple(map(parsed, plain["tested"])),
        why=plain["why"],
        line=plain["line"],
    )


def _tuples(plain: Dict[str, Any]) -> Dict[str, Any]:
    """JSON has no tuples, of which all sequences of the matrix are."""
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _tuple(values: List[Any]) -> Tuple[Any, ...]:
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values)
