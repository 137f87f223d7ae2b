"""fastNLP's own BART and CPT skip the same layers on every rank, and so does a user's own code."""

from __future__ import annotations

import pytest

from tests.fastnlp import layers, releases
from tests.skipping import compared

pytestmark = [
    pytest.mark.patches("fastnlp.layerdrop"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not releases.has_drivers(), reason="no model of these releases skips layers"),
]
found, test_plain_torch_fails_and_skips_apart, test_all_ranks_skip_the_same_layers = compared.suite(
    layers, list(layers.MODELS), "fastnlp"
)
