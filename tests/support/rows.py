"""What the matrix says of the torch that is installed, for tests of cures that begin at a later release."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

from ddpfix.matrix import loader


def lacks(patch: str) -> str:
    """Why a patch does not cure the torch that is installed, by the row of the matrix that says so; "" where it does.

    Raises:
        KeyError: the matrix has no such patch.
    """
    whole, version = loader.load(), Version(metadata.version("torch"))
    if patch not in whole.patches:
        raise KeyError(patch)
    rows = [row for row in whole.rows_of(patch) if row.status == "not-cured" and row.versions.holds(version)]
    return f"{patch}, {version}: {rows[0].why}" if rows else ""


def needs(patch: str) -> Any:
    """A mark that skips a test where torch's release is not cured by a patch; raises as :func:`lacks` does."""
    why = lacks(patch)
    return pytest.mark.skipif(bool(why), reason=why)
