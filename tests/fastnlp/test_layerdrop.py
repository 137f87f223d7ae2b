"""fastNLP's own BART and CPT skip the same layers on every rank, and so does a user's own code."""

from __future__ import annotations

import pytest

from tests.fastnlp import layers, releases
from tests.skipping import compared
from tests.skipping.compared import Found

pytestmark = [
    pytest.mark.patches("fastnlp.layerdrop"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="no model of these releases skips layers"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return compared.trained(tmp_path_factory.mktemp("fastnlp"), layers, list(layers.MODELS), "fastnlp_layerdrop")


@pytest.mark.parametrize("name", layers.MODELS)
def test_plain_torch_fails_and_skips_apart(found: Found, name: str) -> None:
    compared.fails_without(found, name)


@pytest.mark.patches("torch.layerdrop")
@pytest.mark.parametrize("name", layers.MODELS)
def test_all_ranks_skip_the_same_layers(found: Found, name: str) -> None:
    compared.skips_alike(found, name, layers)
