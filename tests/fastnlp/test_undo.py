"""Undone, everything in fastNLP is what it was, and so is the hook for errors that nobody catches."""

from __future__ import annotations

import sys

import pytest
from packaging.version import Version

from tests.fastnlp import releases
from tests.support import undo

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.skipif(releases.release() < Version("0.7.0"), reason="no patch is for these releases")
def test_everything_is_what_it_was() -> None:
    hook = sys.excepthook
    undo.check("fastNLP", least=4 if releases.has_drivers() else 1)
    assert sys.excepthook is hook
