"""The trace of the demo's own script, which records by hooks on the layers what was skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddpfix.cli.demo.ranks import SCRIPT
from ddpfix.trace import reader
from tests.support import ranks

pytest.importorskip("transformers")
pytestmark = [pytest.mark.patches("torch.trace"), pytest.mark.sampled(inside=False, cells=True)]
STEPS = 12


def environment(**more: str) -> Dict[str, str]:
    return ranks.environment({"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", **more})


def words(folder: Path, steps: int, model: str = "wavlm", loop: str = "plain") -> List[str]:
    (folder / "record").mkdir()
    chosen = ["--model", model, "--loop", loop, "--steps", str(steps)]
    return [*ranks.elastic(2), str(SCRIPT), *chosen, "--folder", str(folder / "record"), "--limit", "60"]


def recorded(folder: Path, rank: int, key: str) -> List[Dict[str, Any]]:
    lines = (folder / "record" / f"rank-{rank}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if key in line]


@pytest.mark.parametrize(
    ("model", "loop"), [("wavlm", "plain"), ("bart", "plain"), ("bart", "accelerate"), ("wavlm", "trainer")]
)
def test_what_was_skipped_and_lost_is_what_the_script_records(model: str, loop: str, tmp_path: Path) -> None:
    if loop != "plain":
        pytest.importorskip("accelerate")
    checksums = {}
    for name, trace in (("with", str(tmp_path / "trace")), ("without", "off")):
        (tmp_path / name).mkdir()
        environ = environment(DDPFIX="1", DDPFIX_TRACE=trace)
        code, output = ranks.run(words(tmp_path / name, STEPS, model, loop), environ, tmp_path, 200)
        assert code == 0, output
        checksums[name] = [recorded(tmp_path / name, rank, "checksum")[0]["checksum"] for rank in (0, 1)]
    assert checksums["with"] == checksums["without"]
    for rank, run in reader.read(tmp_path / "trace").runs.items():
        steps, lines = run.steps, recorded(tmp_path / "with", rank, "skipped")
        assert steps["step"] == list(range(1, STEPS + 1)) and len(lines) == STEPS
        (described,) = run.models
        names = [shown(name) for name in described["layers"]]
        assert [sorted(names[i] for i in some) for some in steps["skipped"]] == [sorted(x["skipped"]) for x in lines]
        assert any(steps["skipped"])
        if loop != "trainer":
            assert steps["loss"] == pytest.approx([line["loss"] for line in lines], rel=1e-6)
        assert all(0 < each < 1 for each in steps["padding"]) and all(len(each) >= 2 for each in steps["shape"])
        for skipped, unused in zip(steps["skipped"], steps["unused"] or []):
            if unused is None:
                # Older releases of accelerate keep gradients, as zeros: who got none is only seen in the first step.
                assert loop == "accelerate" and steps["unused"][0] is not None
                continue
            layers = {described["layers"][index] for index in skipped}
            own = {described["parameters"][index] for index in unused}
            # All parameters of a skipped layer that are its own, and none of a layer that ran and had an effect: an
            # encoder has none without the decoder's layers, which look at it.
            assert all(any(name.startswith(layer + ".") for name in own) for layer in layers)
            ran = set(described["layers"]) - layers
            if model == "bart" and not any(".decoder." in layer for layer in ran):
                assert all(any(name.startswith(layer + ".") for name in own) for layer in ran)
                continue
            assert not [name for name in own if any(name.startswith(layer + ".") for layer in ran)]
        assert run.end is not None and run.end["how"] == "ended"


def shown(name: str) -> str:
    """A layer as the script's record has it."""
    part = "encoder " if "encoder.layers" in name and "wavlm" not in name else ""
    part = "decoder " if "decoder.layers" in name else part
    return part + name.rsplit(".", 1)[-1]
