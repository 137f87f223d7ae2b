"""The probe as a command runs a whole recipe as its user has it, on a machine without a GPU."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.speechbrain import recipes
from tests.support import probe_command, ranks

release = recipes.release()
PATCH = pytest.mark.patches("torch.probe", "speechbrain.probe")
STEPS = 4


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe as its user has it."""
    recipes.write(tmp_path, encoder=recipes.pretrained(tmp_path, {"layerdrop": 0.5}), number_of_epochs="3")
    shutil.copy(recipes.TRAIN, tmp_path)
    return tmp_path


def probed_recipe(folder: Path, *options: str) -> Any:
    words = ("--steps", str(STEPS), "train.py", "train.yaml", *options)
    code, data = probe_command.found(folder, ranks.with_release(), *words)
    probe_command.ended_well(code, data, STEPS)
    # Ended in the first epoch, ahead of its checkpoint.
    assert not list((folder / "results").rglob("CKPT*"))
    assert not (folder / "results" / "train_log.txt").exists()
    return data


@pytest.mark.skipif(release < Version("0.5.16"), reason="RANK alone asks for no group")
def test_unpatched_a_rank_asks_for_a_gpu(recipe: Path) -> None:
    """What the command would end with, as torch elastic sets the environment, where it did not choose gloo."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    code, text = ranks.run([sys.executable, "train.py", "train.yaml"], ranks.with_release(rank), recipe, 60)
    assert code == 1 and "Not enough GPUs available!" in text


@PATCH
def test_a_recipe(recipe: Path) -> None:
    """Of issue 2340, whose advice is typed as it was published."""
    data = probed_recipe(recipe, "--find_unused_parameters=True", "--lr=0.01")
    assert any("no GPU found, so the probe uses gloo" in line for line in data["said"])
    encoder, last = data["models"]
    assert (encoder["steps"], encoder["passes"], last["model"]) == (STEPS, STEPS, "Linear")
    # Up to 0.5.15 it takes --distributed_launch as well, which the command has not.
    under_ddp = release >= Version("0.5.16")
    told = "under DDP with find_unused_parameters=True" if under_ddp else "not under DDP"
    assert encoder["under"] == told
    (skips,) = encoder["skips"]
    assert skips["rate"] == 0.5
    dropped = {name.split(".layers.")[1][0] for name in encoder["sometimes"]}
    assert dropped and all(0 < count < STEPS for count in encoder["sometimes"].values())
    assert all("masked_spec_embed" in name or ".layers." in name for name in encoder["always"])
    assert any("masked_spec_embed (requires_grad_(False))" in line for line in encoder["advice"])
    assert any("masked_spec_embed" in name for name in encoder["always"])
    assert encoder["setting"] == "find_unused_parameters=True"
    assert encoder["line"] == "in SpeechBrain: --find_unused_parameters"
    assert last["always"] == [] and last["setting"] == ""


@PATCH
@pytest.mark.skipif(release < Version("1.0.3"), reason="transformers of that time knows one kind of checkpointing")
def test_checkpointing_and_a_call_past_the_wrapper(recipe: Path) -> None:
    """``self.hparams.X(...)`` in the place of ``self.modules.X(...)``."""
    script = recipe / "train.py"
    script.write_text(script.read_text().replace("self.modules.ctc_lin(features)", "self.hparams.ctc_lin(features)"))
    data = probed_recipe(recipe, "--gradient_checkpointing=reentrant", "--grad_accumulation_factor=1")
    encoder = data["models"][0]
    assert any("model.encoder.layers." in each["name"] for each in encoder["checkpointing"])
    told = " ".join([*data["past"], *data["said"]])
    assert "train.py:" in told and "past its DistributedDataParallel wrapper" in told


@PATCH
@pytest.mark.skipif(release >= Version("1.0.0"), reason="these options are its own")
def test_settings_of_another_release(recipe: Path) -> None:
    data = probed_recipe(recipe, "--precision=fp16")
    assert any("precision=fp16 means --auto_mix_prec in this release" in line for line in data["said"])
