"""Trace and report of the demo's own script, which records by hooks on the layers what was skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddpfix.cli.demo.ranks import SCRIPT
from ddpfix.cli.report import findings, summary
from ddpfix.trace import reader
from tests.support import ranks

pytest.importorskip("transformers")
pytestmark = [pytest.mark.patches("torch.trace"), pytest.mark.sampled(inside=False, cells=True)]
STEPS, LAYERS = 12, [f"wavlm.encoder.layers.{layer}" for layer in range(6)]
STOCK = {"DDPFIX_UNUSED": "find", "DDPFIX_LAYERDROP": "stock"}


def trained(folder: Path, **settings: str) -> List[List[Dict[str, Any]]]:
    """Return what the script of each rank has recorded."""
    folder.mkdir()
    words = [str(SCRIPT), "--steps", str(STEPS), "--folder", str(folder), "--limit", "60"]
    environ = ranks.environment({"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "DDPFIX": "1", **settings})
    code, output = ranks.run([*ranks.elastic(2), *words], environ, folder, 200)
    assert code == 0, output
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(folder.glob("rank-*"))]


@pytest.mark.parametrize("settings", [{}, STOCK], ids=["ddpfix", "stock"])
def test_what_was_skipped_and_lost_is_what_the_script_records(settings: Dict[str, str], tmp_path: Path) -> None:
    records = trained(tmp_path / "with", DDPFIX_TRACE=str(tmp_path / "trace"), **settings)
    without = trained(tmp_path / "without", DDPFIX_TRACE="off", **settings)
    assert [lines[-1]["checksum"] for lines in records] == [lines[-1]["checksum"] for lines in without]
    noted = [[line for line in lines if "step" in line] for lines in records]
    for rank, run in reader.read(tmp_path / "trace").runs.items():
        steps, lines = run.steps, noted[rank]
        assert steps["step"] == list(range(1, STEPS + 1)) and len(lines) == STEPS
        (described,) = run.models
        assert described["layers"] == LAYERS and any(steps["skipped"])
        assert [sorted(map(str, some)) for some in steps["skipped"]] == [sorted(line["skipped"]) for line in lines]
        assert steps["loss"] == pytest.approx([line["loss"] for line in lines], rel=1e-6)
        assert all(0 < each < 1 for each in steps["padding"]) and all(len(each) >= 2 for each in steps["shape"])
        # All parameters of a skipped layer that are its own, and none of a layer that ran; under the flag, of those
        # that all ranks skipped.
        for number, unused in enumerate(steps["unused"]):
            own = {described["parameters"][index].rpartition(".layers.")[2].partition(".")[0] for index in unused}
            skipped = [set(record[number]["skipped"]) for record in noted]
            assert own & set("012345") == (skipped[0] & skipped[1])
        assert run.end is not None and run.end["how"] == "ended"
    the_report_says_the_same(tmp_path / "trace", noted, parted=bool(settings))


def the_report_says_the_same(trace: Path, noted: List[List[Dict[str, Any]]], parted: bool) -> None:
    data = summary.load(trace)
    layers = data["layers"]
    assert layers["names"] == LAYERS
    for rank, lines in enumerate(noted):
        told = [[str(layer) for layer in range(6) if layers["skipped"][layer][rank][step]] for step in range(STEPS)]
        assert told == [line["skipped"] for line in lines]
    differing = sum(one["skipped"] != two["skipped"] for one, two in zip(*noted))
    assert layers["steps_with_disagreement"] == differing and bool(differing) == parted
    said = "\n".join(each.text for each in findings.findings(data))
    assert (f"Ranks skipped different layers in {differing} of {STEPS} steps" in said) == parted
    assert data["time"]["mean"]["total"] and data["time"]["straggler"] is not None
    assert data["memory"]["records"][0]["bytes"] > 2**26 and data["memory"]["records"][-1]["shape"][0] == 8
