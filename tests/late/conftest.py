"""What the tests of this folder share: the outcomes of the scenarios that a file plans."""

from __future__ import annotations

import pytest

from tests.late.launch import Outcomes


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Those of the file's ``plans(folder)``."""
    folder = tmp_path_factory.mktemp("late")
    return Outcomes(request.module.plans(folder), folder)
