"""``python -m ddpfix probe``: the user's own script on one rank, ended after some steps, and what it shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from ddpfix.cli import main
from tests.support import probe_command, ranks

SCRIPT = str(Path(__file__).with_name("script.py"))
PATCH = pytest.mark.patches("torch.probe")
# One run stands for all in a plain run of the tests; each is an interpreter with torch.
REST = pytest.mark.sampled(inside=False, cells=True)
BRANCH, IDLE = ["branch.weight", "branch.bias"], ["idle.weight", "idle.bias"]


def run(folder: Path, *words: str, **environ: str) -> Tuple[int, str]:
    return probe_command.run(folder, ranks.environment(environ), *words)


def found(folder: Path, *words: str, **environ: str) -> Tuple[int, Dict[str, Any]]:
    """The exit code, and what was printed as JSON."""
    return probe_command.found(folder, ranks.environment(environ), *words)


@PATCH
def test_a_script_is_ended_after_some_steps(tmp_path: Path) -> None:
    """Also one that catches everything, and saves when it ends; NCCL becomes gloo where there is no GPU."""
    code, text = run(tmp_path, "--steps", "3", SCRIPT, "nccl", "guarded", "past")
    assert code == 0, text
    assert "after 1\n" in text and "after 2\n" not in text
    assert "SAVED" not in text and "CAUGHT" not in text and not (tmp_path / "checkpoint.pt").exists()
    # What the script had written is in its file.
    assert (tmp_path / "log.txt").read_text() == "step 0\nstep 1\nstep 2\n"
    report = text[text.index("ddpfix probe: ended after 3 optimizer steps") :]
    assert "Net: 8 parameters train, 0 are frozen; 3 steps, 3 passes" in report
    assert "find_unused_parameters=False" in report
    lines = [line.strip() for line in report.splitlines()]
    assert "idle: weight, bias" in lines
    assert "branch: weight, bias in 2 of 3" in lines
    whole = " ".join(report.split())
    assert "script.py:" in whole and "calls a Net past its DistributedDataParallel wrapper" in whole
    # What stands in a log of the script.
    assert "no GPU found: the probe uses gloo instead of nccl" in whole


@PATCH
@REST
def test_without_a_group_the_model_is_found(tmp_path: Path) -> None:
    code, data = found(tmp_path, "--steps=4", SCRIPT)
    assert code == 0 and data["complete"] and data["exit_code"] == 0 and data["steps"] == 4
    (model,) = data["models"]
    assert (model["model"], model["under"]) == ("Net", "not under DDP")
    assert model["always"] == IDLE and model["sometimes"] == dict.fromkeys(BRANCH, 2)
    assert data["past"] == []


@PATCH
@REST
def test_a_script_that_ends_before(tmp_path: Path) -> None:
    code, data = found(tmp_path, "--steps", "9", SCRIPT, "gloo", "steps=2")
    assert code == 0 and not data["complete"] and data["steps"] == 2
    assert "ended by itself after 2 of 9" in data["end"]
    assert data["models"][0]["passes"] == 2
    assert (tmp_path / "checkpoint.pt").exists()


@PATCH
@REST
def test_a_script_that_fails(tmp_path: Path) -> None:
    code, text = run(tmp_path, "--steps", "9", SCRIPT, "fails")
    assert code == 1 and "ValueError: the script's own" in text
    told = "failed after 2 of 9 optimizer steps: ValueError: the script's own (script.py:"
    assert told in " ".join(text.split())
    assert "idle did not run in any of the 2 passes" in text


@PATCH
@REST
def test_a_module_or_code_is_run_as_well(tmp_path: Path) -> None:
    code, data = found(tmp_path, "--steps", "2", "-m", "tests.probing.script", "gloo")
    assert code == 0 and data["complete"] and data["models"][0]["model"] == "Net" and data["past"] == []
    code, text = run(tmp_path, "-c", "import sys; sys.exit(7)")
    assert code == 7 and "exit code 7 before it imported torch" in text
    code, text = run(tmp_path, "-c", "import os; os.kill(os.getpid(), 15)")
    assert code == 143 and "SIGTERM ended the program" in text


@PATCH
@REST
def test_under_torch_elastic_the_first_rank_reports(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    code, data = found(tmp_path, "--steps", "2", *torchrun, SCRIPT, "gloo", OMP_NUM_THREADS="1")
    assert code == 0 and data["complete"] and data["steps"] == 2
    assert data["models"][0]["always"] == IDLE


@PATCH
@REST
def test_settings_of_the_command_line_arrive_and_every_optimizer_has_its_steps(tmp_path: Path) -> None:
    code, data = found(tmp_path, "--steps", "1", "--unused", "find", SCRIPT, "gloo", "gan")
    assert code == 0
    assert [(model["model"], model["steps"]) for model in data["models"]] == [("Net", 1), ("Linear", 1)]
    assert data["models"][0]["under"] == "under DDP with find_unused_parameters=True"
    assert any("set find_unused_parameters=True, because DDPFIX_UNUSED=find" in line for line in data["said"])


@REST
def test_a_script_of_which_nothing_is_asked_is_left_alone(tmp_path: Path) -> None:
    """The same script, without the command: it trains to its end."""
    environ = ranks.environment({"DDPFIX": "1"})
    code, text = ranks.run([sys.executable, SCRIPT, "steps=5"], environ, tmp_path, 120)
    assert code == 0 and "after 4" in text and "SAVED" in text and "probe" not in text


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "probe needs a script"),
        (["-m"], "probe needs a script"),
        (["--steps", "0", "x.py"], "--steps='0': expected whole numbers from 1 on"),
        (["--unused", "perhaps", "x.py"], "DDPFIX_UNUSED='perhaps': expected auto"),
    ],
)
def test_bad_input_is_named(words: List[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["probe", *words]) == 2
    assert message in capsys.readouterr().err


def test_switched_off_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DDPFIX", "0")
    assert main.main(["probe", "x.py"]) == 2
    assert "DDPFIX=0 switches the probe off, too" in capsys.readouterr().err
