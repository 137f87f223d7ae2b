"""``torch.compile(DDP(model))``, which is what accelerate and Trainer make of ``torch_compile=True``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
import torch
from packaging.version import Version

pytestmark = [
    pytest.mark.sampled(inside=False, cells=True),
    pytest.mark.patches("torch.finalize"),
    pytest.mark.skipif(Version(torch.__version__) < Version("2.4"), reason="older releases compile another DDP"),
]
ROOT = Path(__file__).parents[2]
Settings = Optional[Dict[str, str]]


def run(model: str, settings: Settings, compiled: bool = True, rate: float = 0.0, **ddp: bool) -> List[Dict[str, Any]]:
    plan = {"model": model, "settings": settings, "compiled": compiled, "rate": rate, "ddp": ddp, "steps": 4}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDPFIX")}
    environ.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("compiled.py")), json.dumps(plan)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    # Two ranks may write into one line.
    records = [json.JSONDecoder().raw_decode(part)[0] for part in done.stdout.split("FOUND ")[1:]]
    assert len(records) == 2, done.stdout[-4000:]
    return sorted(records, key=lambda each: int(each["rank"]))


@pytest.mark.parametrize(
    "ddp",
    [
        pytest.param({}, id=""),
        pytest.param({"static_graph": True}, id="static", marks=pytest.mark.sampled(inside=False)),
    ],
)
def test_no_more_frames_and_breaks_than_in_plain_torch(ddp: Dict[str, bool]) -> None:
    plain, ours = run("stack", None, **ddp), run("stack", {}, **ddp)
    for one, other in zip(plain, ours):
        assert other["digests"] == one["digests"]
        # DDP's own optimizer cuts the graph at its buckets.
        assert other["graphs"] == one["graphs"] > 1
        assert other["frames"] <= one["frames"] + 2
        assert other["breaks"] <= one["breaks"]


def test_unused_parameters_train_compiled_as_they_do_otherwise() -> None:
    plain = run("spare", None)
    assert all("Expected to have finished reduction" in record["error"] for record in plain)
    compiled, eager = run("spare", {}), run("spare", {}, compiled=False)
    assert [record["digests"] for record in compiled] == [eager[0]["digests"]] * 2
    assert not any(record["flag"] for record in compiled)


@pytest.mark.parametrize("unused", ["auto", pytest.param("late", marks=pytest.mark.sampled(inside=False))])
def test_layerdrop_trains_compiled_as_it_does_otherwise(unused: str) -> None:
    compiled = run("wav2vec2", {"unused": unused}, rate=0.5)
    eager = run("wav2vec2", {"unused": unused}, rate=0.5, compiled=False)
    assert compiled[0]["digests"] == compiled[1]["digests"]
    assert compiled[0]["digests"] == eager[0]["digests"]
