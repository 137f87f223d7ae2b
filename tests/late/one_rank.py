"""What tests of one rank share: a group of one, an activation that each test leaves as it was, a small model."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
from torch import distributed, nn

import ddpfix


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    assert ddpfix.deactivate() == []


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.one(x), self.other(x)
