"""The probe as a command runs FunASR's own entries in one process, and finds what DDP would (issue 1584)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from tests.funasr import recipes, trained
from tests.support import probe_command, ranks

STEPS = 3
# The first release seen to accumulate gradients in one process.
ONE_PROCESS = (1, 1, 16)
PATCH = pytest.mark.patches("torch.probe")
ENTRY = pytest.mark.skipif(trained.release() < (1, 0, 18), reason="training needs edits")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """The configurations of two models."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "c").mkdir()
    (folder / "s").mkdir()
    conformer = recipes.write(folder / "c", "Conformer", encoder_conf={"stochastic_depth_rate": 0.5})
    return {"Conformer": conformer, "SeacoParaformer": recipes.write(folder / "s", "SeacoParaformer")}


def probed_entry(folder: Path, config: Path, entry: str, *typed: str) -> Dict[str, Any]:
    """What the command finds in FunASR's own entry, started as a module."""
    arguments = [f"--config-path={config.parent}", f"--config-name={config.name}", f"hydra.run.dir={folder}"]
    arguments += [f"++output_dir={folder / 'exp'}", *typed]
    words = ("--steps", str(STEPS), "-m", f"funasr.bin.{entry}", *arguments)
    code, data = probe_command.found(folder, ranks.with_release(), *words, limit=200)
    probe_command.ended_well(code, data, STEPS)
    assert not list((folder / "exp").glob("model.pt*")), "a checkpoint was begun"
    return data


@PATCH
@ENTRY
@pytest.mark.parametrize("entry", trained.entries())
def test_an_entry_with_stochastic_depth(corpora: Dict[str, Path], entry: str, tmp_path: Path) -> None:
    # Earlier releases ask a model that is not under DDP for no_sync, and end with an AttributeError.
    batches = 2 if trained.release() >= ONE_PROCESS else 1
    typed = ("++find_unused_parameters=false", f"++train_conf.accum_grad={batches}")
    data = probed_entry(tmp_path, corpora["Conformer"], entry, *typed)
    # FunASR reads it below train_conf alone.
    assert any("train_conf.find_unused_parameters" in line for line in data["said"]), data["said"]
    found = probe_command.model(data, "Conformer")
    # With one process FunASR takes no DDP.
    assert (found["steps"], found["passes"], found["under"]) == (STEPS, batches * STEPS, "not under DDP")
    assert {each["rate"] for each in found["skips"]} == {0.5} and len(found["skips"]) == 4
    layers = {".".join(name.split(".")[:3]) for name in found["sometimes"]}
    assert layers and all(layer.startswith("encoder.encoders.") for layer in layers)
    assert found["setting"] == "find_unused_parameters=True"
    assert found["line"] == "in FunASR: ++train_conf.find_unused_parameters=true"
    (advice,) = [line for line in found["advice"] if "skips layers at random" in line]
    assert advice.count("EncoderLayer (rate 0.5) skips layers") == 1


@PATCH
@ENTRY
@pytest.mark.parametrize("entry", trained.entries()[-1:])
def test_an_entry_with_parts_that_are_never_used(corpora: Dict[str, Path], entry: str, tmp_path: Path) -> None:
    """Issue 1584, on a laptop."""
    found = probe_command.model(probed_entry(tmp_path, corpora["SeacoParaformer"], entry), "SeacoParaformer")
    assert {"predictor.blstm", "predictor.cif_output2"} <= {name.rpartition(".")[0] for name in found["always"]}
    assert found["sometimes"] == {} and found["setting"] == "find_unused_parameters=True"
    assert found["line"] == "in FunASR: ++train_conf.find_unused_parameters=true"
    # The list above has all names, the advice the first of them.
    assert any(line.startswith("freeze ") for line in found["advice"])
