"""Models of any origin under FSDP and ``fully_shard``, layer by layer, on two real ranks."""

from __future__ import annotations

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.skipping import launch, shapes
from tests.skipping.launch import Scenario

pytestmark = pytest.mark.patches("torch.layerdrop")
ONLY = ("Item", "Numpy", "EmptyVector", "Blocks")


@pytest.mark.skipif(TorchVersion(torch.__version__) < (2, 6), reason="torch.fsdp is not cured there")
@pytest.mark.parametrize("wrapper", ["fsdp", "fully_shard"])
def test_ranks_gather_and_skip_the_same_layers(wrapper: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ranks that skip different layers wait for each other in plain torch."""
    ours = {"transformers_layerdrop": "0"}
    plan = Scenario(wrapper, settings=ours, wrapper=wrapper, only=ONLY)
    first, second = launch.train([plan], tmp_path_factory.mktemp("sharded"))[wrapper]
    for name in ONLY:
        assert first[name]["ran"] == second[name]["ran"], name
        assert 8 <= sum(shapes.LAYERS - len(ran) for ran in first[name]["ran"]) <= 40, name
        assert first[name]["outputs"] != second[name]["outputs"]
