"""What the matrix says of the torch that is installed, for tests of cures that begin at a later release."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

from ddpfix.matrix import loader


def needs(patch: str) -> Any:
    """A mark that skips a test where a row says that torch's release is not cured by a patch, and why.

    Raises:
        KeyError: the matrix has no such patch.
    """
    whole, version = loader.load(), Version(metadata.version("torch"))
    if patch not in whole.patches:
        raise KeyError(patch)
    rows = [row for row in whole.rows_of(patch) if row.status == "not-cured" and row.versions.holds(version)]
    return pytest.mark.skipif(bool(rows), reason=f"{patch}, {version}: {rows[0].why if rows else ''}")
