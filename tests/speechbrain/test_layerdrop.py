"""SpeechBrain's own encoders on two real ranks; those of transformers are in test_unused.py, through a whole recipe."""

from __future__ import annotations

import pytest

from tests.skipping import compared
from tests.speechbrain import models

pytestmark = pytest.mark.patches("speechbrain.layerdrop")
found, test_plain_torch_fails_and_skips_apart, test_all_ranks_skip_the_same_layers = compared.suite(
    models, list(models.MODELS), "speechbrain"
)
