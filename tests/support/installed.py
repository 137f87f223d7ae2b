"""Packages that a test needs and an environment may lack."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


def needed(package: str, how: str) -> Any:
    """The package, imported; the test is skipped where it is not installed.

    ``pytest.importorskip`` skips as well where the package is there and something that it imports is not: a cell that
    is made for the package would pass without a test of it.

    Raises:
        ImportError: the package is installed and cannot be imported.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"NOT RUN: {how}")
    return importlib.import_module(package)
