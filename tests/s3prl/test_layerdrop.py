"""s3prl's upstreams on two real ranks: copies of wav2vec 2.0, HuBERT and WavLM."""

from __future__ import annotations

import pytest

from tests.s3prl import models
from tests.skipping import compared

pytestmark = pytest.mark.patches("s3prl.layerdrop")
found, test_plain_torch_fails_and_skips_apart, test_all_ranks_skip_the_same_layers = compared.suite(
    models, list(models.MODELS), "s3prl"
)


def test_its_import_loads_nothing_of_the_fix() -> None:
    compared.loads_nothing("s3prl.upstream.wavlm.WavLM")
