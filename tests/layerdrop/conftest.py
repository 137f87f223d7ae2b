"""What the tests of LayerDrop share."""

from __future__ import annotations

from typing import Iterator

import pytest

from ddpfix.patching.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site("test")
    yield made
    assert made.undo() == []
