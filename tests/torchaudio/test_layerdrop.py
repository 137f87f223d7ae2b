"""torchaudio's wav2vec 2.0, HuBERT and WavLM on two real ranks, without transformers."""

from __future__ import annotations

import pytest

from tests.skipping import compared
from tests.skipping.compared import Found
from tests.torchaudio import models

pytestmark = pytest.mark.patches("torchaudio.layerdrop")
NAMES = [name for name in models.MODELS if models.available(name)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return compared.trained(tmp_path_factory.mktemp("torchaudio"), models, NAMES, "torchaudio_layerdrop")


@pytest.mark.parametrize("name", NAMES)
def test_plain_torch_fails_and_skips_apart(found: Found, name: str) -> None:
    compared.fails_without(found, name)


@pytest.mark.patches("torch.layerdrop")
@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_skip_the_same_layers(found: Found, name: str) -> None:
    compared.skips_alike(found, name, models)


def test_its_import_loads_nothing_of_the_fix() -> None:
    compared.loads_nothing("torchaudio.models")
