"""``espnet2.bin.asr_train`` from its command line, on two ranks under torch elastic."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from ddpfix.patches.espnet import unused

from ddpfix.trace import reader
from tests.espnet import task
from tests.skipping.stacks import FAILURE
from tests.support import ranks

ENCODERS = (("e_branchformer", "layer_drop_rate=0.5"), ("conformer", "stochastic_depth_rate=0.5"))
TRUE, FALSE = ("--unused_parameters", "true"), ("--unused_parameters", "false")


def trained(folder: Path, words: List[str], environ: Optional[Dict[str, str]] = None) -> Tuple[int, str]:
    """Train; with environment variables of ddpfix under ``ddpfix run``."""
    task.written(folder)
    before = [] if environ is None else ["-m", "ddpfix", "run"]
    command = [*ranks.elastic(2), *before, "-m", task.MODULE, *words]
    return ranks.run(command, ranks.with_release(ranks.environment(environ or {})), folder, 150)


def said(output: str, words: str) -> List[str]:
    return [line for line in output.splitlines() if "ddpfix" in line and words in line]


@pytest.mark.patches("espnet.layerdrop", "espnet.unused")
@pytest.mark.parametrize(("encoder", "rate"), ENCODERS)
def test_plain_torch_ends_with_its_error(tmp_path: Path, encoder: str, rate: str) -> None:
    code, output = trained(tmp_path, task.command(tmp_path, rate, encoder=encoder))
    assert code != 0 and FAILURE in output, output


@pytest.mark.patches("espnet.layerdrop", "espnet.unused")
@pytest.mark.parametrize(("encoder", "rate"), ENCODERS)
def test_it_trains_and_ranks_skip_the_same_layers(tmp_path: Path, encoder: str, rate: str) -> None:
    environ = {"DDPFIX_TRACE": str(tmp_path / "trace")}
    code, output = trained(tmp_path, task.command(tmp_path, rate, encoder=encoder), environ)
    assert code == 0 and "2epoch results" in output, output
    assert len(said(output, "all ranks skip the same layers of")) == 1 and not said(output, "diverged"), output
    runs = reader.read(tmp_path / "trace").runs
    skipped = [runs[rank].steps["skipped"] for rank in (0, 1)]
    assert skipped[0] == skipped[1] and len(skipped[0]) == 8 and any(skipped[0]), skipped


@pytest.mark.patches("espnet.unused")
def test_false_that_was_typed_stands(tmp_path: Path) -> None:
    code, output = trained(tmp_path, task.command(tmp_path, ENCODERS[0][1], *FALSE), {})
    assert code != 0 and FAILURE in output and "--unused_parameters true" in output, output


@pytest.mark.patches("espnet.unused")
@pytest.mark.parametrize(
    ("value", "words", "config", "chosen"),
    [
        (True, [], "", True),
        (False, [], "", None),
        (False, ["--ngpu", "2"], "encoder: conformer\n", None),
        (False, ["--unused_parameters", "false"], "", False),
        (False, ["--unused_parameters=false"], "", False),
        (False, [], "unused_parameters: false\n", False),
        (True, [], "unused_parameters: true\n", True),
        (False, [], "- no\n- mapping\n", None),
        (False, [], "a: [\n", None),
    ],
)
def test_what_was_chosen(value: bool, words: List[str], config: str, chosen: Any, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(config)
    args = argparse.Namespace(unused_parameters=value, config=str(tmp_path / "train.yaml"))
    assert unused.chosen(args, words) is chosen
    if not config:
        assert unused.chosen(argparse.Namespace(unused_parameters=value, config=None), words) is chosen
