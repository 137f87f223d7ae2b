"""SpeechBrain's own encoders on two real ranks; those of transformers are in test_unused.py, through a whole recipe."""

from __future__ import annotations

import pytest

from tests.skipping import compared
from tests.skipping.compared import Found
from tests.speechbrain import models

pytestmark = pytest.mark.patches("speechbrain.layerdrop")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return compared.trained(
        tmp_path_factory.mktemp("speechbrain"), models, list(models.MODELS), "speechbrain_layerdrop"
    )


@pytest.mark.parametrize("name", models.MODELS)
def test_plain_torch_fails_and_skips_apart(found: Found, name: str) -> None:
    compared.fails_without(found, name)


@pytest.mark.patches("torch.layerdrop")
@pytest.mark.parametrize("name", models.MODELS)
def test_all_ranks_skip_the_same_layers(found: Found, name: str) -> None:
    compared.skips_alike(found, name, models)
