"""Compiles the matrix of this checkout, which the package reads: ``python -m tests.support.compiled``.

``pip install -e .`` does it once. An edited ``compat_matrix.yaml`` is refused until it has been compiled.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddpfix.matrix import loader
from ddpfix.matrix.model import MatrixError

ROOT = Path(__file__).resolve().parents[2]
YAML = ROOT / "compat_matrix.yaml"


def anew(root: Path = ROOT) -> None:
    """Compile it (:func:`ddpfix.matrix.compiling.write.write`)."""
    # An environment without PyYAML runs tests of a checkout that was compiled in another one.
    from ddpfix.matrix.compiling.write import write

    write(root)


def where_edited() -> None:
    """Compile it where the package refuses what it finds."""
    try:
        loader.load()
    except MatrixError:
        anew()


if __name__ == "__main__":
    try:
        anew()
    except MatrixError as error:
        sys.exit(str(error))
