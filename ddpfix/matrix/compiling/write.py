"""Writes the compiled matrix, which :mod:`ddpfix.matrix.compiled` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ddpfix.matrix import compiled
from ddpfix.matrix.compiling.nodes import Plain
from ddpfix.matrix.compiling.reader import Reader


def write(folder: Path) -> Path:
    """Compile the matrix of a checkout for the package in it; return the file that was written.

    Raises:
        MatrixError: the matrix has an error, which the message locates by file and line.
    """
    yaml = folder / "compat_matrix.yaml"
    text = sealed(Reader(yaml).plain(), yaml.read_bytes())
    path = folder / "ddpfix" / compiled.NAME
    # Another process may be reading it.
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path


def sealed(whole: Plain, yaml: bytes) -> str:
    """Return a matrix and the digest of its YAML as JSON, below the digest of what follows and the toolkits' names."""
    data = json.dumps({**whole, "digest": compiled.digest(yaml)}, separators=(",", ":"))
    text = f"{' '.join(whole['toolkits'])}\n{data}"
    return f"{compiled.digest(text.encode())}\n{text}"
