"""Loads the matrix: the compiled one of the wheel, or the YAML."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Optional

from ddpfix.matrix import compiled, places
from ddpfix.matrix.model import Matrix, MatrixError
from ddpfix.matrix.places import default_path as default_path


def load(path: Optional[Path] = None, thorough: bool = True) -> Matrix:
    """Read and validate the matrix.

    Args:
        path: another file than the package's own.
        thorough: whether rows are checked against each other and against patches/, and the file is checked for attacks.
            This was done for the package's own file before it was shipped, and every process that trains reads it; the
            compiled form is read, unless the file has been edited since.

    Raises:
        MatrixError: the file is missing, is not YAML, or does not follow the schema.
    """
    packed = _packed() if path is None else None
    if packed is not None:
        return packed
    file = path or default_path()
    try:
        stamp = file.stat().st_mtime
    except OSError as error:
        raise MatrixError(f"{file}:1: cannot be read ({error.strerror}); reinstall ddpfix") from None
    if not file.is_file():
        # A pipe would be waited for, and a device has no end.
        raise MatrixError(f"{file}:1: is no file; reinstall ddpfix")
    matrix = None
    if path is None and not thorough and places.patches().is_dir():
        matrix = compiled.load(file.with_name(compiled.NAME), file)
    return _from_yaml(str(file), stamp, thorough) if matrix is None else matrix


@lru_cache(maxsize=1)
def _packed() -> Optional[Matrix]:
    """Return the compiled matrix of a package in an archive, in which there is no file that could be edited."""
    own, yaml = places.packed(compiled.NAME), places.packed("compat_matrix.yaml")
    return None if own is None or yaml is None else compiled.of(own, yaml)


@lru_cache(maxsize=4)
def _from_yaml(path: str, stamp: float, thorough: bool) -> Matrix:
    # YAML takes longer to import than all that a process that trains needs of the matrix.
    from ddpfix.matrix.reader import Reader

    return Reader(Path(path), thorough).matrix()
