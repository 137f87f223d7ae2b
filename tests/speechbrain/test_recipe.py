"""A recipe started as SpeechBrain's documentation starts recipes, with the advice of issue 2340 typed as published."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

import pytest
from packaging.version import Version

from tests.speechbrain import recipes
from tests.support import ranks

release = recipes.release()
# Before 0.5.14 gloo needs a GPU for each rank, and no stand-in of the tests is in the way here.
pytestmark = [
    pytest.mark.patches("speechbrain.options", "speechbrain.unused"),
    pytest.mark.skipif(release < Version("0.5.14"), reason="cannot train on the CPU as its users start it"),
]
FAILURE = "Expected to have finished reduction in the prior iteration"
ADVICE = "--find_unused_parameters=True"
# The thread says fp16, which SpeechBrain refuses on a CPU from 1.0 on.
PRECISION = "--precision=bf16" if release >= Version("1.0.0") else "--precision=fp16"


@dataclass
class Run:
    """One start of the recipe: exit code, output of all ranks, and what it left."""

    code: int
    output: str
    results: Path

    @property
    def epochs(self) -> List[str]:
        log = self.results / "train_log.txt"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe's script and hyperparameters, as a user has them."""
    home = tmp_path_factory.mktemp("recipe")
    recipes.write(home)
    shutil.copy(recipes.TRAIN, home)
    return home


def launcher() -> List[str]:
    """How the documentation of the release starts two processes."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    if release >= Version("0.5.16"):
        return words
    words = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2"]
    return [*words, f"--master_port={29000 + os.getpid() % 900}"]


def start(folder: Path, options: Sequence[str], environ: Dict[str, str], before: Sequence[str] = ()) -> Run:
    """``python train.py train.yaml`` and options, behind a launcher; everything stays inside of ``folder``."""
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    typed = ["--distributed_backend=gloo", "--device=cpu", *options]
    if release < Version("0.5.16"):
        typed.append("--distributed_launch")
    whole = ranks.environment(environ)
    whole["PYTHONPATH"] = os.pathsep.join([whole["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    whole["TORCHELASTIC_ERROR_FILE"] = ""
    command = [*before, *launcher(), "train.py", "train.yaml", *typed]
    code, output = ranks.run(command, whole, folder, 120)
    return Run(code, output, results)


def test_unpatched_refuses_the_advice_and_fails_without_it(folder: Path) -> None:
    refused = start(folder, [ADVICE], {})
    assert refused.code != 0 and "ignored explicit argument 'True'" in refused.output
    plain = start(folder, [], {})
    # The launcher of torch 2 says --local-rank, which 0.5.14 takes for a key of the yaml.
    why = FAILURE if release >= Version("0.5.15") else "local-rank"
    assert plain.code != 0 and why in plain.output and not plain.epochs


@pytest.mark.parametrize("options", [[], [ADVICE], [ADVICE, PRECISION]], ids=" ".join)
def test_it_trains_as_typed(folder: Path, options: List[str]) -> None:
    run = start(folder, options, {"DDPFIX": "1"})
    assert run.code == 0, run.output[-4000:]
    assert len(run.epochs) == 1 and run.epochs[0].startswith("epoch: 1, lr: 5.00e-02 - train loss: ")
    assert len(list(run.results.glob("save/CKPT*"))) == 1


def test_one_process(folder: Path) -> None:
    """``python train.py``: there is nothing to find, and the option is no error."""
    shutil.rmtree(folder / "results", ignore_errors=True)
    whole = ranks.environment({"DDPFIX": "1"})
    whole["PYTHONPATH"] = os.pathsep.join([whole["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "train.py", "train.yaml", "--device=cpu", ADVICE, PRECISION]
    code, output = ranks.run(command, whole, folder, 120)
    assert code == 0, output[-4000:]


def test_through_the_run_command(folder: Path) -> None:
    run = start(folder, [ADVICE, "--lr=0.02"], {}, before=[sys.executable, "-m", "ddpfix", "run"])
    assert run.code == 0, run.output[-4000:]
    assert "lr: 2.00e-02" in run.epochs[0]
    assert "lr: 0.02" in (run.results / "hyperparams.yaml").read_text()


def test_from_its_first_line(folder: Path) -> None:
    script = folder / "train.py"
    text = script.read_text()
    script.write_text(text.replace("import sys\n", "import ddpfix.auto\nimport sys\n", 1))
    try:
        run = start(folder, [ADVICE], {})
    finally:
        script.write_text(text)
    assert run.code == 0, run.output[-4000:]
    assert len(run.epochs) == 1
