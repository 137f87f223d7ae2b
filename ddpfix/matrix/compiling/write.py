"""Writes the compiled matrix, which :mod:`ddpfix.matrix.compiled` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict

from ddpfix.matrix import compiled
from ddpfix.matrix.compiling.reader import Reader
from ddpfix.matrix.model import Matrix, Row


def write(root: Path) -> Path:
    """Compile the matrix of a checkout for the package in it; return the file that was written.

    Args:
        root: the folder of the checkout.

    Raises:
        MatrixError: the matrix has an error, which the message locates by file and line.
    """
    yaml = root / "compat_matrix.yaml"
    text = dump(Reader(yaml).matrix(), yaml.read_bytes())
    path = root / "ddpfix" / compiled.NAME
    # Another process may be reading it.
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path


def dump(matrix: Matrix, yaml: bytes) -> str:
    """Return the matrix as JSON, below the digest of what follows it and the toolkits' names.

    Args:
        matrix: read from ``yaml``.
        yaml: the text of the file.
    """
    whole = {
        "digest": compiled.digest(yaml),
        "toolkits": dict(matrix.toolkits),
        "version_files": dict(matrix.version_files),
        "order": list(matrix.order),
        "gate": {"places": [target._asdict() for target in matrix.gate.places], "passed": matrix.gate.passed},
        "newest": dict(matrix.newest),
        "code": dict(matrix.code),
        "parameters": dict(matrix.parameters),
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
    text = f"{' '.join(matrix.toolkits)}\n{json.dumps(whole, separators=(',', ':'))}"
    return f"{compiled.digest(text.encode())}\n{text}"


def _plain(row: Row) -> Dict[str, Any]:
    return {
        "versions": list(row.versions),
        "status": row.status,
        "targets": [target._asdict() for target in row.targets],
        "tested": [str(version) for version in row.tested],
        "why": row.why,
        "line": row.line,
        "rests_on": list(row.rests_on),
        "also": list(row.also),
    }
