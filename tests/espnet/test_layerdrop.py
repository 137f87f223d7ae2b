"""ESPnet's encoders on two real ranks: stochastic depth and LayerDrop."""

from __future__ import annotations

import pytest

from tests.espnet import models
from tests.skipping import compared

pytestmark = pytest.mark.patches("espnet.layerdrop")
NAMES = [name for name in models.MODELS if models.skips(name)]
found, test_plain_torch_fails_and_skips_apart, test_all_ranks_skip_the_same_layers = compared.suite(
    models, NAMES, "espnet"
)


def test_its_import_loads_nothing_of_the_fix() -> None:
    compared.loads_nothing("espnet2.asr.encoder.conformer_encoder")
