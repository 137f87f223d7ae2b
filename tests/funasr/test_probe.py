"""The probe of one process finds in SeacoParaformer what DDP finds on two ranks (issue 1584)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.funasr import probed, trained
from tests.support import two_ranks


@pytest.mark.skipif(trained.release() < (1, 0, 24), reason="before, forwards of SeacoParaformer raise in some of these")
def test_seaco(tmp_path: Path) -> None:
    found = two_ranks.found(Path(probed.__file__), tmp_path)
    for name in probed.CASES:
        entry = found[name]
        assert entry["probe"] == entry["ddp"], name
        assert entry["first"] == entry["named"], name
        assert entry["always"] and not entry["sometimes"], name
        assert {"predictor.blstm", "predictor.cif_output2"} <= {part.rpartition(".")[0] for part in entry["always"]}
        assert entry["setting"] == "find_unused_parameters=True"
    assert "ctc.ctc_lo.weight" in found["ctc"]["always"] and "ctc.ctc_lo.weight" not in found["default"]["always"]
