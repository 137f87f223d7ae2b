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
    plans = compared.plans("tests.torchaudio.models", NAMES, "torchaudio_layerdrop", compared.OF_ANY_ORIGIN)
    return compared.trained(tmp_path_factory.mktemp("torchaudio"), plans)


@pytest.mark.parametrize("name", NAMES)
def test_plain_torch_fails_and_skips_apart(found: Found, name: str) -> None:
    compared.fails_without(found, name)


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_skip_the_same_layers(found: Found, name: str) -> None:
    compared.skips_alike(found, f"ours {name}", models.MODELS[name], models.LAYERS)


@pytest.mark.patches("torch.layerdrop")
@pytest.mark.parametrize("name", NAMES)
def test_so_they_do_by_the_fix_for_any_model(found: Found, name: str) -> None:
    compared.skips_alike(found, f"any {name}", models.MODELS[name], models.LAYERS)


@pytest.mark.parametrize("name", NAMES)
def test_switched_off_they_skip_apart(found: Found, name: str) -> None:
    compared.skips_apart(found, f"switched {name}")


@pytest.mark.patches("torchaudio.layerdrop")
@pytest.mark.parametrize("name", NAMES)
def test_off_skips_nothing(found: Found, name: str) -> None:
    compared.skips_nothing(found, name, models.LAYERS)


def test_its_import_loads_nothing_of_the_fix() -> None:
    compared.loads_nothing("torchaudio.models")
