"""The probe of one process finds in WeNet's branchformers what DDP finds on two ranks.

As a command, it runs a tree's own ``wenet/bin/train.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
import torch

from tests.support import probe_command
from tests.wenet import launch, recipe, trees
from tests.wenet.test_layerdrop import KINDS, kinds

STEPS = 8
PATCH = pytest.mark.patches("torch.probe")
pytestmark = pytest.mark.sampled(inside=False, cells=True)


@pytest.mark.parametrize("tree", trees.every(("v2", "v30", "v3"), trees.since("v2.2.1")))
def test_branchformers(tree: Any, tmp_path: Path) -> None:
    plans = [launch.scenario(name, "probed", steps=STEPS, timeout=90, **KINDS[name]) for name in kinds(tree)]
    results = launch.run(tree, plans, tmp_path)
    for name in kinds(tree):
        for entry in results[name]:
            assert entry is not None and entry["error"] is None, name
            assert entry["probe"] == entry["ddp"], name
            assert entry["sometimes"] and entry["skips"], name
            assert entry["setting"] == "find_unused_parameters=True"


def probed_script(tree: Path, folder: Path, *typed: str) -> Dict[str, Any]:
    """What the command finds in three steps of a job that :mod:`tests.wenet.recipe` has written."""
    words = ("--steps", "3", *recipe.command(tree, folder, *typed))
    code, data = probe_command.found(folder, recipe.environ(tree), *words, limit=200)
    probe_command.ended_well(code, data, 3)
    left = {file.name for file in (folder / "model").iterdir()}
    # What the script writes ahead of its first epoch is whole.
    assert left <= {"train.yaml", "init.yaml", "init.pt", "init.zip"}
    torch.load(folder / "model" / "init.pt", map_location="cpu")
    return probe_command.model(data, "ASRModel")


@PATCH
@pytest.mark.parametrize("tree", trees.real(trees.since("v2.2.1")))
def test_the_script_with_stochastic_depth(tree: Path, tmp_path: Path) -> None:
    depth = {"num_blocks": 4, "stochastic_depth_rate": 0.5}
    recipe.write(tmp_path, 24, encoder="branchformer", encoder_conf=depth)
    # Unpatched WeNet skips what has an equals sign in it.
    found = probed_script(tree, tmp_path, "--override_config", "accum_grad=2")
    # Up to 2.2.1, the first batch makes a step by itself, and one process takes no DDP.
    old = trees.version(tree) < "3"
    assert (found["steps"], found["passes"]) == (3, 5 if old else 6)
    assert found["under"] == ("not under DDP" if old else "under DDP with find_unused_parameters=True")
    assert found["skips"] and {each["rate"] for each in found["skips"]} == {0.5}
    layers = {".".join(name.split(".")[:3]) for name in found["sometimes"]}
    assert layers and all(layer.startswith("encoder.encoders.") for layer in layers)
    assert any("pooling_proj1" in name for name in found["always"])
    assert found["setting"] == "find_unused_parameters=True"
    # WeNet sets the flag by itself.
    assert found["line"] == ""


@PATCH
@pytest.mark.parametrize("tree", trees.real(trees.since("v3.0.0")))
def test_the_script_with_checkpointing_and_a_part_that_is_not_used(tree: Path, tmp_path: Path) -> None:
    recipe.write(tmp_path, encoder_conf={"gradient_checkpointing": True}, model_conf={"ctc_weight": 1.0})
    found = probed_script(tree, tmp_path)
    assert {each["kind"] for each in found["checkpointing"]} == {"ConformerEncoderLayer"}
    assert found["never_ran"] == ["decoder"] and found["sometimes"] == {}
    assert found["always"] and all(name.startswith("decoder.") for name in found["always"])
    line = '--override_config "encoder_conf.gradient_checkpointing false"'
    assert (found["setting"], found["line"]) == ("find_unused_parameters=True", f"in WeNet: {line}")
    # The line, as it stands.
    without = probed_script(tree, tmp_path, "--override_config", "encoder_conf.gradient_checkpointing false")
    assert (without["checkpointing"], without["line"], without["always"]) == ([], "", found["always"])
    assert without["under"] == "under DDP with find_unused_parameters=True"
