"""torchaudio's wav2vec 2.0, HuBERT and WavLM on two real ranks, without transformers."""

from __future__ import annotations

import pytest

from tests.skipping import compared
from tests.torchaudio import models

pytestmark = pytest.mark.patches("torchaudio.layerdrop")
NAMES = [name for name in models.MODELS if models.available(name)]
found, test_plain_torch_fails_and_skips_apart, test_all_ranks_skip_the_same_layers = compared.suite(
    models, NAMES, "torchaudio"
)


def test_its_import_loads_nothing_of_the_fix() -> None:
    compared.loads_nothing("torchaudio.models")
