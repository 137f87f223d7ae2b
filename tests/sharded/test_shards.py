"""Which ranks have to agree, from what FSDP keeps on a module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List, Optional

import pytest

pytestmark = pytest.mark.patches("transformers.sharded")

torch = pytest.importorskip("torch")

from ddpfix.patches.torch.internals import process_groups  # noqa: E402


def mesh(ranks: List[Any]) -> Any:
    return SimpleNamespace(mesh=torch.tensor(ranks))


def module(*meshes: Optional[Any]) -> Any:
    """One whose parameters have these meshes; None is a plain tensor."""
    parameters = [SimpleNamespace() if one is None else SimpleNamespace(device_mesh=one) for one in meshes]
    return SimpleNamespace(parameters=lambda: iter(parameters))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks; a group is the list of its ranks."""
    monkeypatch.setattr(process_groups, "is_torchs", lambda group: True)
    monkeypatch.setattr(process_groups, "ranks_of", lambda group: list(range(8)) if group is None else group)
    monkeypatch.setattr(
        process_groups.distributed, "get_world_size", lambda group=None: 8 if group is None else len(group)
    )


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ([[0, 1, 2, 3]], [0, 1, 2, 3], [0, 1, 2, 3]),
        # Two replicas of two sharding.
        ([[[0, 1], [2, 3]]], [[0, 1], [2, 3]], [0, 1, 2, 3]),
        # Tensor parallel layers: rank 1 has other parts of the same layers, and the mesh that was given lacks it.
        ([[[0, 1], [2, 3]]], [0, 2], [0, 1, 2, 3]),
        # Experts on other ranks: no rank knows which rank runs which.
        ([[0, 1, 2, 3], [0, 2]], [0, 1, 2, 3], None),
        # Nothing of it is sharded.
        ([None], [0, 2], [0, 2]),
        ([None], None, list(range(8))),
        ([None, [4, 5]], [4, 5], [4, 5]),
    ],
)
@pytest.mark.usefixtures("world")
def test_fsdp2(own: List[Any], given: Any, expected: Optional[List[int]]) -> None:
    parameters = [None if ranks is None else mesh(ranks) for ranks in own]
    assert process_groups.of_fsdp2(module(*parameters), None if given is None else mesh(given)) == expected


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        ({"process_group": [2, 3]}, [2, 3]),
        ({"process_group": [0, 1, 2, 3], "_inter_node_pg": [0, 4]}, list(range(8))),
        # Hybrid on half of the ranks: which half cannot be determined from two of its groups.
        ({"process_group": [0, 1], "_inter_node_pg": [0, 2]}, None),
        ({"process_group": [0, 2], "_fsdp_extension": object()}, None),
    ],
)
@pytest.mark.usefixtures("world")
def test_fsdp1(wrapper: Any, expected: Optional[List[int]]) -> None:
    assert process_groups.of_fsdp1(SimpleNamespace(**wrapper)) == expected
