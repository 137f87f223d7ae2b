"""Memory that rises with equal batches is named, memory that only fills something is not, and a kill is no success."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any, List, Optional

import numpy as np
import pytest

from ddpfix.cli.report import findings, summary
from ddpfix.cli.report.memory import growth
from ddpfix.rules.endings import UNRECORDED
from ddpfix.rules.finding import BAD, GOOD, Finding
from ddpfix.trace import reader
from tests.support import ranks

SCRIPT = Path(__file__).with_name("kept.py")
MIB = 2**20
needs_linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc/self/statm")


def trained(folder: Path, how: str, code: int = 0) -> List[Finding]:
    environ = ranks.environment({"DDPFIX": "1", "DDPFIX_TRACE": str(folder / "trace"), "GLOO_SOCKET_IFNAME": "lo"})
    found, output = ranks.run([sys.executable, str(SCRIPT), how, str(folder)], environ, folder, 240)
    assert found == code, output
    return findings.findings(summary.load(folder / "trace"))


@needs_linux
@pytest.mark.sampled(inside=False)
@pytest.mark.patches("torch.trace")
def test_what_is_kept_of_each_step_is_named(tmp_path: Path) -> None:
    """As in Lightning-AI/pytorch-lightning 4098, a metric; losses (JIA-Lab-research/DecoupleNet 3, horovod/horovod 641)
    and caches (cgtuebingen/SSS-GS 7) are memory of the same kind.
    """
    (found,) = [each for each in trained(tmp_path, "metric") if each.kind == "memory"]
    match = re.match(r"Process memory of rank 0 rose ([\d.]+) MiB a step with equal batches \(2048 × 32\)", found.where)
    assert match and 6 < float(match[1]) < 14, found
    assert found.level == BAD and found.where.endswith(
        ": something is kept (outputs, losses or metrics with their graph)."
    )
    assert found.advice.startswith("keep loss.item()")


@pytest.mark.sampled(inside=False)
@pytest.mark.patches("torch.trace")
def test_pages_of_a_file_are_not_named(tmp_path: Path) -> None:
    assert not [each for each in trained(tmp_path, "mapped_file") if "equal batches" in each.where]


@pytest.mark.sampled(inside=False)
@pytest.mark.patches("torch.trace")
def test_a_run_that_is_killed_in_a_huge_batch_names_it(tmp_path: Path) -> None:
    found = trained(tmp_path, "killed", code=-9)
    (ended,) = [each for each in found if each.kind == UNRECORDED]
    assert (ended.level, ended.where) == (
        BAD,
        "rank 0 was killed in step 26 with a batch of 64000 × 32 (no exit record)",
    )
    assert not [each for each in found if each.kind == "memory" and each.level == GOOD]
    begun = reader.read(tmp_path / "trace").runs[0].begins
    # Of all steps, only those whose batch is larger than all before; such a step has a line at its end, too.
    assert [(row["step"], row.get("shape")) for row in begun] == [(1, [2048, 32]), (2, None), (26, [64000, 32])]


def grown(used: List[Optional[float]], shapes: Any = None, rank: int = 3) -> Any:
    batches = [[4, 8]] * len(used) if shapes is None else shapes
    return growth(rank, np.arange(1, len(used) + 1), np.array(used, dtype=float), batches)


def test_growth_is_said_only_where_it_is_certain() -> None:
    rising: List[Optional[float]] = [(300 + 12 * step) * MIB for step in range(16)]
    found = grown(rising)
    assert (found.a_step, found.rank, found.shape) == (pytest.approx(12 * MIB), 3, (4, 8))
    assert found.first == (4, 336 * MIB) and found.last == (16, 480 * MIB)
    # An epoch ends with a smaller batch, some rows have no number, and a number may fall for once.
    assert grown(rising, [[4, 8]] * 7 + [[2, 8]] + [[4, 8]] * 8)
    assert grown([None if step % 6 == 5 else value for step, value in enumerate(rising)])
    assert grown([value - 20 * MIB if step == 9 and value else value for step, value in enumerate(rising)])
    # Too few steps, batches that differ or are not known, a later one that is larger, and what levels off.
    assert not grown(rising[:12])
    assert not grown(rising, [[4, 8 + step % 3] for step in range(16)])
    assert not grown(rising, [None] * 16) and not grown(rising, [[4, 8]] * 15 + [[4, 9]])
    assert not grown([(300 + 12 * min(step, 9)) * MIB for step in range(16)])
    assert not grown([(300 + 60 * step**0.3) * MIB for step in range(400)])
    assert not grown([(300 + 12 * (step % 5)) * MIB for step in range(16)])
    assert not grown([(300 + 60 * math.log(step + 1)) * MIB for step in range(16)])
    assert not grown([(300 + 40 * (step > 6) + 40 * (step > 11)) * MIB for step in range(16)])
    assert not grown([(300 + 12 * (step % 12)) * MIB for step in range(20)])
    # What an epoch gives back at once.
    assert not grown([(300 + 12 * step - 60 * (step >= 11)) * MIB for step in range(24)])
    # As measured with a metric whose epochs begin with lists of indices.
    used = [354, 365, 397, 401.5, 415.5, 416.8, 427.4, 438.2, 435.1, 447.4, 476.9, 478.1, 481, 493.3, 506.6]
    assert 8 * MIB < grown([each * MIB for each in used]).a_step < 10 * MIB
    # Lists of numbers that a program logs.
    assert not grown([(300 + 0.01 * step) * MIB for step in range(20_000)])
