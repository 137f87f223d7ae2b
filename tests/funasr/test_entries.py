"""Every way to start FunASR's training and to switch ddpfix on, from the shell's first word to the checkpoint.

On a machine without CUDA, so that ``++device=cpu`` is the first thing that unpatched FunASR fails on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
import torch

from ddpfix import __version__
from tests.funasr import launch, recipes, trained
from tests.funasr.launch import Scenario
from tests.support import ranks

pytestmark = pytest.mark.patches("funasr.entry", "funasr.cpu")

VERSION = launch.version()
RELEASE = trained.release()
# SeacoParaformer is the reported model; before 1.0.18 it cannot be trained by any means.
MODEL = "SeacoParaformer" if RELEASE >= (1, 0, 18) else "Paraformer"
ENTRIES = launch.entries()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
FINETUNE = """\
#!/bin/bash
train_tool=$1
shift
"$PYTHON" -m torch.distributed.run --standalone --nproc_per_node 2 $train_tool "$@"
"""


def shell(folder: Path, entry: str) -> Tuple[List[str], Dict[str, str]]:
    """``DDPFIX=1 bash finetune.sh``, with the entry as a script from a clone, as FunASR's recipes start it."""
    (folder / "finetune.sh").write_text(FINETUNE)
    script = clone(folder, entry)
    return ["bash", str(folder / "finetune.sh"), str(script)], {"DDPFIX": "1", "PYTHON": sys.executable}


def module(folder: Path, entry: str) -> Tuple[List[str], Dict[str, str]]:
    return [*TORCHRUN, "-m", "ddpfix", "run", "-m", f"funasr.bin.{entry}"], {}


def first_line(folder: Path, entry: str) -> Tuple[List[str], Dict[str, str]]:
    """``import ddpfix.auto`` as the first line of the user's own copy of the entry."""
    script = clone(folder, entry)
    script.write_text("import ddpfix.auto\n" + script.read_text())
    return [*TORCHRUN, str(script)], {}


def console(folder: Path, entry: str) -> Tuple[List[str], Dict[str, str]]:
    """The console script, with ddpfix in front of the launcher."""
    script = folder / "funasr-train"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom funasr.bin.{entry} import main_hydra\nsys.exit(main_hydra())\n"
    )
    script.chmod(0o755)
    return [sys.executable, "-m", "ddpfix", "run", *TORCHRUN, "--no-python", str(script)], {}


def clone(folder: Path, entry: str) -> Path:
    script = folder / "FunASR" / "funasr" / "bin" / f"{entry}.py"
    script.parent.mkdir(parents=True)
    script.write_text((launch.package() / "bin" / f"{entry}.py").read_text())
    return script


WAYS = {"shell": shell, "module": module, "first_line": first_line, "console": console}
# Two of the eight cases in CI's releases, together all ways; in the others what their users do.
CASES = {
    "1.0.19": [("shell", "train"), ("console", "train")],
    "1.1.16": [("shell", "train_ds"), ("module", "train")],
    "1.4.16": [("first_line", "train_ds"), ("console", "train")],
}.get(VERSION, [("shell", ENTRIES[-1])])


def run(command: List[str], environ: Dict[str, str], folder: Path, config: Path) -> Tuple[int, str]:
    whole = ranks.environment(environ)
    whole["PYTHONPATH"] = os.pathsep.join([whole["PYTHONPATH"], str(launch.package().parent)])
    arguments = [f"--config-path={config.parent}", f"--config-name={config.name}", f"++output_dir={folder / 'exp'}"]
    return ranks.run([*command, *arguments, f"hydra.run.dir={folder}"], whole, folder, 150)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    if RELEASE >= (1, 0, 6):
        # 1.0.24 deletes the only model that it keeps.
        return recipes.write(folder, MODEL, train_conf={"keep_nbest_models": 10})
    # Another name of the default sampler, and that of the validation is built on the training set.
    config = recipes.write(folder, MODEL, dataset_conf={"batch_sampler": trained.SAMPLER})
    recipes.corpus(folder, (1.0, 1.2, 1.4, 1.6) * 4, "val")
    return config


@pytest.fixture(scope="module")
def reference(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """What unpatched FunASR trains with the flag set: by the user where it arrives, by hand where it does not."""
    scenarios = [
        Scenario(entry, config, entry, before=launch.starts() + trained.BY_HAND, keep=True) for entry in ENTRIES
    ]
    outcomes = launch.train(scenarios, tmp_path_factory.mktemp("reference"), ddpfix=False)
    for results in outcomes.values():
        assert all(result.error is None for result in results), results[0].log[-3000:]
        assert results[0].steps == results[1].steps and len(results[0].steps) > 1
    return {name: results[0].kept for name, results in outcomes.items() if results[0].kept is not None}


@pytest.mark.parametrize(("way", "entry"), CASES)
def test_every_way_trains_what_the_flag_by_hand_trains(
    way: str, entry: str, config: Path, reference: Dict[str, Path], tmp_path: Path
) -> None:
    command, environ = WAYS[way](tmp_path, entry)
    if RELEASE < (1, 0, 18):
        # There each rank gets batches of its own, and the reference has the release's.
        environ = {**environ, "DDPFIX_FUNASR_MEMORY": "0", "DDPFIX_FUNASR_UNEVEN": "0"}
    code, output = run(command, environ, tmp_path, config)
    assert code == 0, output[-6000:]
    assert output.count(f"ddpfix {__version__}: ") == 1, output[-6000:]
    (checkpoint,) = sorted((tmp_path / "exp").glob("model.pt.ep*"))[-1:]
    weights = torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"]
    # Early releases save the wrapper's names.
    weights = {name[len("module.") :] if name.startswith("module.") else name: w for name, w in weights.items()}
    expected = torch.load(reference[entry], map_location="cpu")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="unpatched FunASR fails of the missing CUDA, which is here")
def test_unpatched_fails_before_its_first_step_on_a_cpu(config: Path, tmp_path: Path) -> None:
    command, environ = WAYS["shell"](tmp_path, ENTRIES[-1])
    code, output = run(command, {**environ, "DDPFIX": "0"}, tmp_path, config)
    assert code != 0
    if VERSION == "1.1.9" and "unexpected keyword argument 'find_unused_parameters'" in output:
        return
    assert "Torch not compiled with CUDA enabled" in output or "_cuda_setDevice" in output or "NVIDIA driver" in output
    assert "ddpfix" not in output.replace(str(tmp_path), "")
