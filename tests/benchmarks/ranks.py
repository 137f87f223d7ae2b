"""What two real ranks gain and lose: a training step, and the moment at which the model is wrapped."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Dict, List

from tests.benchmarks.measure import extra, middle_half
from tests.benchmarks.report import Figure
from tests.ranks import launch

_CHILD = Path(__file__).with_name("rank_child.py")


@lru_cache(maxsize=None)
def _found(folder: Path, quick: bool) -> Dict[str, Any]:
    """What the ranks found; they are started once for both sections."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(_CHILD)]
    command += [str(folder), *(["--quick"] if quick else [])]
    code, output = launch._run(command, launch.environment(), str(folder), 240)
    assert code == 0, output
    return dict(json.loads((folder / "found.json").read_text()))


def a_step(folder: Path, quick: bool) -> List[Figure]:
    """A step with shared decisions, against stock with find_unused_parameters=True and decisions of each rank's own."""
    figures: List[Figure] = []
    for found in _found(folder, quick)["steps"]:
        turns, layers, name = found["turns"], found["layers"], f"layerdrop {found['rate']}"
        ratios = [one / other for one, other in zip(turns["ours"], turns["stock"])]
        note = f"{median(turns['stock']):.0f} ms in stock; {middle_half(ratios, 2)}"
        figures.append(Figure(f"{name}: step / stock step", median(ratios), "x", 1, note))
        note = f"{layers['ours']:.2f} / {layers['stock']:.2f}"
        figures.append(Figure(f"{name}: layers of the slowest rank", layers["ours"] / layers["stock"], "x", note=note))
    return figures


def wrapping(folder: Path, quick: bool) -> List[Figure]:
    """DistributedDataParallel(...) with the comparison of the ranks, and without ddpfix."""
    turns = _found(folder, quick)["wrapping"]
    more = extra(turns, "ours", "stock")
    return [
        Figure("added to DistributedDataParallel(...)", median(more), "ms", note=middle_half(more)),
        Figure("DistributedDataParallel(...) in stock", median(turns["stock"]), "ms", note=middle_half(turns["stock"])),
    ]
