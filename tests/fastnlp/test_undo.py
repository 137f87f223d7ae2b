"""Undo gives back every object of the release that was there, and leaves nothing behind."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.fastnlp import layers, releases
from tests.support import undo

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.skipif(releases.release() < Version("0.7.0"), reason="no patch is for these releases")
def test_everything_is_what_it_was() -> None:
    if releases.has_drivers():
        layers.encoder()  # BART's module is patched when it is imported.
    undo.check("fastNLP", least=3 if releases.has_drivers() else 1)
