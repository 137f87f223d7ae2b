"""Checkpoints of transformers' Trainer on two real ranks (transformers issue 27925)."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Tuple

import pytest
import torch

from ddpfix.matrix import detect, loader
from tests.support import ranks

SCRIPT = Path(__file__).with_name("trainer_saves.py")
FOUND = detect.installed_versions(loader.load())["transformers"]
pytestmark = pytest.mark.skipif(
    FOUND != "4.36.0", reason='transformers 4.36.0 alone renames on every rank: nox -s "cells(transformers-4.36.0)"'
)


def train(folder: Path, who: str, **environ: str) -> Tuple[int, str]:
    folder.mkdir(exist_ok=True)
    return ranks.run([*ranks.elastic(2), str(SCRIPT), str(folder), who], ranks.environment(environ), folder, 180)


def files(folder: Path) -> List[str]:
    return sorted(str(path.relative_to(folder)) for path in (folder / "run").glob("*checkpoint*/*"))


def ends(folder: Path) -> List[Dict[str, torch.Tensor]]:
    return [torch.load(folder / f"end{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("environ", [{}, {"DDPFIX": "1", "DDPFIX_TRANSFORMERS_RENAMING": "0"}], ids=["plain", "off"])
def test_without_the_patch_ranks_take_the_folder_away_from_each_other(tmp_path: Path, environ: Dict[str, str]) -> None:
    code, screen = train(tmp_path, "all", **environ)
    assert code != 0 and ("Directory not empty" in screen or "No such file or directory" in screen), screen
    assert "tmp-checkpoint-1" in screen, screen


@pytest.mark.patches("transformers.renaming")
def test_every_rank_saves_into_one_checkpoint(tmp_path: Path) -> None:
    code, screen = train(tmp_path / "none", "none")
    assert code == 0, screen
    code, screen = train(tmp_path / "all", "all", DDPFIX="1")
    assert code == 0, screen
    expected = ends(tmp_path / "none")[0]
    for end in ends(tmp_path / "all"):
        assert all(torch.equal(end[name], expected[name]) for name in expected)
    found = files(tmp_path / "all")
    assert {name for name in found if "rng_state" in name} == {
        f"run/checkpoint-{step}/rng_state_{rank}.pth" for step in (1, 2) for rank in (0, 1)
    }
    assert not [name for name in found if "tmp-" in name]
    from safetensors.torch import load_file

    saved = load_file(str(tmp_path / "all" / "run" / "checkpoint-2" / "model.safetensors"))
    assert all(torch.equal(saved[name], expected[name]) for name in expected)
