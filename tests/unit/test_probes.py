"""Probes of torch's compiled reducer say what the release does for which a fix was written, or does not."""

from __future__ import annotations

import pytest
import torch
from ddpfix.patches.torch.internals import probes, reducer
from packaging.version import Version

from ddpfix.matrix import loader

# Only a release that is newer than all tested ones is asked; before 2.6 a process group is made in another way.
pytestmark = pytest.mark.skipif(Version(torch.__version__) < Version("2.6"), reason="a probe asks newer releases")


def test_each_probe_agrees_with_the_rows_of_its_fix() -> None:
    here, whole = Version(torch.__version__), loader.load()
    asked = [patch for patch in whole.patches.values() if patch.probe]
    assert {patch.id for patch in asked} == {"torch.finalize"}
    for patch in asked:
        (row,) = [row for row in whole.rows_of(patch.id) if row.versions.holds(here)]
        said = getattr(probes, patch.probe.partition(":")[2])()
        assert said == (row.status == "cured"), patch.id


def test_a_reducer_that_keeps_waiting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "mark_ready", lambda *given: None)
    assert not probes.marks_what_is_missing()


def test_a_probe_needs_no_default_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert probes.marks_what_is_missing()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(state, torch.get_rng_state()) and not torch.distributed.is_initialized()
