"""The report of the demo's training, as shipped and under ddpfix, against what the script has noted by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

from ddpfix.cli.demo.ranks import SCRIPT
from ddpfix.cli.report import findings, summary

pytestmark = pytest.mark.sampled(inside=False)
STEPS = 12


def train(folder: Path, **settings: str) -> None:
    pytest.importorskip("transformers")
    folder.mkdir()
    names = [name for name in os.environ if not name.startswith(("DDPFIX", "TORCHELASTIC_", "PYTEST"))]
    environ = {**{name: os.environ[name] for name in names}, "DDPFIX": "1", "OMP_NUM_THREADS": "1", **settings}
    environ.update(DDPFIX_TRACE=str(folder / "trace"), GLOO_SOCKET_IFNAME="lo", TMPDIR=str(folder))
    words = ["--model", "wavlm", "--loop", "plain", "--steps", str(STEPS), "--folder", str(folder), "--limit", "60"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run([*launcher, str(SCRIPT), *words], env=environ, check=True, timeout=240, capture_output=True)


def noted(folder: Path) -> Dict[int, List[List[str]]]:
    """The layers that hooks of the script saw skipped, by rank and step."""
    found: Dict[int, List[List[str]]] = {}
    for rank in range(2):
        lines = [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
        found[rank] = [line["skipped"] for line in lines if "step" in line]
    return found


@pytest.mark.parametrize(
    ("settings", "parted"),
    [({"DDPFIX_UNUSED": "find", "DDPFIX_LAYERDROP": "stock"}, True), ({}, False)],
    ids=["stock", "ddpfix"],
)
def test_the_report_has_what_each_rank_skipped(tmp_path: Path, settings: Dict[str, str], parted: bool) -> None:
    folder = tmp_path / "run"
    train(folder, **settings)
    seen = noted(folder)
    data = summary.load(folder / "trace")
    layers = data["layers"]
    assert layers["names"] == [f"wavlm.encoder.layers.{layer}" for layer in range(6)]
    for rank in range(2):
        told = [[str(layer) for layer in range(6) if layers["skipped"][layer][rank][step]] for step in range(STEPS)]
        assert told == seen[rank]
    differing = sum(one != two for one, two in zip(seen[0], seen[1]))
    assert layers["steps_with_disagreement"] == differing
    assert bool(differing) == parted
    said = "\n".join(each.text for each in findings.findings(data))
    assert (f"Ranks skipped different layers in {differing} of {STEPS} steps" in said) == parted
    assert data["time"]["mean"]["total"] and data["time"]["straggler"] is not None
    assert data["memory"]["records"][0]["bytes"] > 2**26
    assert data["memory"]["records"][-1]["shape"][0] == 8
