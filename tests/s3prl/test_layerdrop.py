"""s3prl's upstreams on two real ranks: copies of wav2vec 2.0, HuBERT and WavLM."""

from __future__ import annotations

import pytest

from tests.s3prl import models
from tests.skipping import compared
from tests.skipping.compared import Found

pytestmark = pytest.mark.patches("s3prl.layerdrop")
NAMES = list(models.MODELS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return compared.trained(tmp_path_factory.mktemp("s3prl"), models, NAMES, "s3prl_layerdrop")


@pytest.mark.parametrize("name", NAMES)
def test_plain_torch_fails_and_skips_apart(found: Found, name: str) -> None:
    compared.fails_without(found, name)


@pytest.mark.patches("torch.layerdrop")
@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_skip_the_same_layers(found: Found, name: str) -> None:
    compared.skips_alike(found, name, models)


def test_its_import_loads_nothing_of_the_fix() -> None:
    compared.loads_nothing("s3prl.upstream.wavlm.WavLM")
