"""Reads the compiled matrix: JSON that :mod:`ddpfix.matrix.compiling` has made of ``compat_matrix.yaml``.

The first line is the digest of the rest: rows are read long after the file was accepted, too late to find that it is
damaged. The second line names the toolkits, for a process that uses none of them. Rows become objects when they are
first read, because most of them are about toolkits that are not installed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ddpfix.matrix.model import Mark, Matrix, Patch, Row, Target
from ddpfix.matrix.ranges import Range, parsed

NAME = "compat_matrix.json"


def of(content: bytes) -> Optional[Tuple[Matrix, str]]:
    """Return the matrix and the digest of the YAML that it was made from; None where the file is damaged."""
    try:
        own, _, text = content.partition(b"\n")
        if own.decode("ascii") != digest(text):
            return None
        whole = json.loads(text.partition(b"\n")[2])
        return made(whole), whole["digest"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def made(whole: Dict[str, Any]) -> Matrix:
    """Return the matrix that the data stand for."""
    rows = Rows({patch["id"]: patch.pop("rows") for patch in whole["patches"]})
    patches = [Patch(**{**_tuples(patch), "examined": _tuples(patch["examined"])}) for patch in whole["patches"]]
    return Matrix(
        whole["toolkits"],
        {patch.id: patch for patch in patches},
        rows,
        whole["version_files"],
        {toolkit: tuple(Mark(**_tuples(mark)) for mark in plain) for toolkit, plain in whole["marks"].items()},
        tuple(whole["order"]),
        tuple(Target(**target) for target in whole["gate"]),
        whole["newest"],
        _tuples(whole["code"]),
        whole["parameters"],
    )


def digest(content: bytes) -> str:
    """Return what stands for the contents of a file."""
    return hashlib.sha256(content).hexdigest()


class Rows(Sequence[Row]):
    """Rows that are made of plain data when they are first read.

    Args:
        plain: the rows of each patch, as they were compiled.
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


def _made(patch: str, plain: Dict[str, Any]) -> Row:
    targets = tuple(Target(**_tuples(target)) for target in plain["targets"])
    tested, versions = tuple(map(parsed, plain["tested"])), Range(*plain["versions"])
    return Row(**{**_tuples(plain), "patch": patch, "versions": versions, "targets": targets, "tested": tested})


def _tuples(plain: Dict[str, Any]) -> Dict[str, Any]:
    """JSON has no tuples, of which all sequences of the matrix are."""
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _tuple(values: List[Any]) -> Tuple[Any, ...]:
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values)
