"""The lines of a diagnosis under Trainer and accelerate: with them the same program trains."""

from __future__ import annotations

import pytest

from tests.ranks.launch import served
from tests.ranks.test_ranks import REDUCTION

OFF = {"TEST_STOCK": "1", "DDPFIX_UNUSED": "off"}
WHAT = {
    "trainer_line": ("Trainer", "TrainingArguments(..., ddp_find_unused_parameters=True)"),
    "accelerate_loop": (
        "accelerate",
        "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])",
    ),
}


@pytest.mark.sampled(inside=False, cells=True)
@pytest.mark.patches("torch.diagnosis")
@pytest.mark.parametrize("name", WHAT)
def test_the_line_is_the_tools_own_and_cures(name: str) -> None:
    tool, expected = WHAT[name]
    done = served([name], True, OFF)
    found = [record["error"] for record in done.records(name) if REDUCTION in record.get("error", "")]
    # A rank that left nothing out waits for the other one, and finds it gone.
    assert found, done.output
    for error in found:
        assert "encoder.layers." in error and "skips layers at random (layerdrop 0.5)" in error
        assert f"in {tool}, paste this line" in error
    line = found[0].rstrip().splitlines()[-1].strip()
    assert line == expected
    cured = served([name], True, {**OFF, "TEST_LINE": line})
    for record in cured.records(name):
        assert "error" not in record and record["told"] is True, cured.output
