"""Loads the compiled matrix of the package."""

from __future__ import annotations

from ddpfix.matrix import compiled, places
from ddpfix.matrix.model import Matrix, MatrixError

# How a checkout gets it anew.
COMPILE = "python -m tests.support.compiled"


def load() -> Matrix:
    """Return the matrix.

    Raises:
        MatrixError: there is none, it is damaged, or ``compat_matrix.yaml`` of the checkout has been edited since.
    """
    file, yaml = places.file(compiled.NAME), places.source()
    remedy = "reinstall ddpfix" if yaml is None else f"run {COMPILE}"
    if not places.is_complete():
        raise MatrixError(f"{file}:1: the patches are missing; {remedy}")
    try:
        found = compiled.of(places.contents(compiled.NAME))
        edited = yaml is not None and found is not None and compiled.digest(yaml.read_bytes()) != found[1]
    except OSError as error:
        raise MatrixError(f"{file}:1: cannot be read ({error.strerror}); {remedy}") from None
    if found is None:
        raise MatrixError(f"{file}:1: is damaged; {remedy}")
    if edited:
        raise MatrixError(f"{yaml}:1: was edited after it was compiled; {remedy}")
    return found[0]
