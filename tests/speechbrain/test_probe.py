"""The probe of one process finds in SpeechBrain's encoders with LayerDrop what DDP finds on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from tests.speechbrain import probed, recipes
from tests.support import two_ranks


@pytest.mark.skipif(recipes.release() < Version("1.0.3"), reason="no BEATs, and other arguments of the encoder")
def test_encoders(tmp_path: Path) -> None:
    found = two_ranks.found(Path(probed.__file__), tmp_path)
    for name in probed.ENCODERS:
        entry = found[name]
        assert entry["probe"] == entry["ddp"], name
        assert entry["first"] == entry["named"], name
        assert entry["sometimes"] and [rate for _, rate in entry["skips"]] == [0.5], name
        assert entry["setting"] == "find_unused_parameters=True"
