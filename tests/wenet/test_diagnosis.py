"""DDP's errors in real trees: ``wenet/bin/train.py`` on two ranks, its line applied, and the run passes.

Unpatched WeNet switches ``find_unused_parameters`` off as soon as a model checkpoints its activations.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any, Dict, NamedTuple, Sequence, Tuple

import pytest

from tests.support import ranks
from tests.wenet import recipe, trees

pytestmark = [pytest.mark.patches("torch.diagnosis"), pytest.mark.sampled(inside=False, cells=True)]
UNFINISHED = "Expected to have finished reduction in the prior iteration"
TWICE = "Expected to mark a variable ready only once"
LINE = '--override_config "encoder_conf.gradient_checkpointing false"'
CHECKPOINTED = {"gradient_checkpointing": True}


class Case(NamedTuple):
    """One cause.

    Attributes:
        tags: of the trees that have it.
        changes: to the yaml.
        settings: of ddpfix, which cures it by default; without them the run passes.
        error: torch's.
        names: words of the parameters.
        cause: in words.
        edited: whether it is that of a tree in which somebody has set the flag.
    """

    tags: Sequence[str]
    changes: Dict[str, Any]
    settings: Dict[str, str]
    error: str
    names: Sequence[str]
    cause: str
    edited: bool = False


OFF = {"DDPFIX_UNUSED": "off"}
# With the checkpoints as they are.
REENTRANT = {**OFF, "DDPFIX_TORCH_REENTRANT": "0"}
# Of train_utils.py, as it is and as somebody edits it who was told to set the flag.
EDIT = ("find_unused_parameters=not grad_ckpt", "find_unused_parameters=True")
CASES = {
    "a part that is not used": Case(
        trees.since("v3.0.0"),
        {"encoder_conf": CHECKPOINTED, "model_conf": {"ctc_weight": 1.0}},
        OFF,
        UNFINISHED,
        ["decoder"],
        "decoder did not run in this step, the first one",
    ),
    "layers that are skipped": Case(
        trees.since("v3.1.0"),
        {"encoder": "branchformer", "encoder_conf": {**CHECKPOINTED, "num_blocks": 4, "stochastic_depth_rate": 0.5}},
        OFF,
        UNFINISHED,
        ["encoder.encoders."],
        "skips layers at random",
    ),
    "checkpoints and the flag": Case(
        ("v3.0.0", "v3.0.1"),
        {"encoder_conf": CHECKPOINTED},
        REENTRANT,
        TWICE,
        ["encoder.encoders."],
        "a reentrant checkpoint hides encoder.encoders.",
        edited=True,
    ),
}


def start(tree: Path, folder: Path, environ: Dict[str, str], *more: str) -> Tuple[int, str]:
    """Train for an epoch on two ranks: exit code, and what they print."""
    command = [*ranks.elastic(2), *recipe.command(tree, folder, *more)]
    return ranks.run(command, recipe.environ(tree, **environ), folder, 200)


def trained(code: int, text: str, folder: Path) -> None:
    assert code == 0, text[-6000:]
    assert (folder / "model" / "epoch_0.pt").exists()


def edited(tree: Path, folder: Path) -> Path:
    """A copy of a tree with the edit."""
    copy = folder / tree.name
    shutil.copytree(tree / "wenet", copy / "wenet")
    file = copy / "wenet" / "utils" / "train_utils.py"
    text = file.read_text()
    assert text.count(EDIT[0]) == 1
    file.write_text(text.replace(*EDIT))
    return copy


def cases() -> Any:
    return [
        pytest.param(name, *each.values, id=f"{name}-{each.id}", marks=each.marks)
        for name, case in CASES.items()
        for each in trees.real(case.tags)
    ]


@pytest.mark.parametrize("name, tree", cases())
def test_the_line_of_a_diagnosis_cures(name: str, tree: Path, tmp_path: Path) -> None:
    case = CASES[name]
    recipe.write(tmp_path, 16, **case.changes)
    tree = edited(tree, tmp_path) if case.edited else tree
    code, text = start(tree, tmp_path, {})
    assert code != 0 and case.error in text and "ddpfix:" not in text, text[-6000:]
    told = diagnosed(tree, tmp_path, case)
    assert all(word in told for word in case.names), told
    assert case.cause in told and "in WeNet, paste this line" in told, told
    assert LINE in [line.strip() for line in told.splitlines()], told
    trained(*start(tree, tmp_path, {"DDPFIX": "1", **case.settings}, *shlex.split(LINE)), tmp_path)


def diagnosed(tree: Path, folder: Path, case: Case) -> str:
    """The message of torch's error with what is added to it, of the rank that has printed it first."""
    code, text = start(tree, folder, {"DDPFIX": "1", **case.settings})
    assert code != 0 and not (folder / "model" / "epoch_0.pt").exists(), text[-6000:]
    begin = text.find(f"RuntimeError: {case.error}")
    assert begin >= 0, text[-6000:]
    return text[begin : begin + 12_000]
