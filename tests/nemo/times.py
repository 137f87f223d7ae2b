"""The time of a step of NeMo's conformer encoder at some rates: ``python -m tests.nemo.times`` in NeMo's environment.

Two ranks train the encoder of NeMo's small conformer (16 layers of 176), in turns as shipped and under ddpfix. What is
saved is compared with the rate: a layer that is dropped is not computed. The number depends on the machine as far as
subsampling, DDP and the optimizer have a part in the step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

from tests.support import ranks

RATES = (0.0, 0.1, 0.3, 0.5)
ROUNDS, STEPS, WARM = 3, 24, 4
_SIZES: Dict[str, Any] = {"n_layers": 16, "d_model": 176, "n_heads": 4, "conv_kernel_size": 31}


def train(rate: float) -> List[float]:
    """Train on this rank; return the seconds of each step."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from tests.nemo import models

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    sizes = {**_SIZES, "ff_expansion_factor": 4, "feat_in": 80, "subsampling_conv_channels": 176}
    encoder = models.conformer(rate, **sizes, subsampling_factor=4).model
    model = DistributedDataParallel(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(distributed.get_rank())
    features = torch.randn(2, 80, 400)
    times = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        optimizer.zero_grad()
        models.loss(model, features).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    distributed.destroy_process_group()
    return times[WARM:]


def measured(rate: float, ours: bool, file: Path) -> List[float]:
    environ = ranks.with_release({"DDPFIX": str(int(ours)), "DDPFIX_LOG": "off"})
    words = [*ranks.elastic(2), "-m", "tests.nemo.times", str(rate), str(file)]
    subprocess.run(words, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: List[float] = json.loads(file.read_text(encoding="utf-8"))
    return found


def main() -> None:
    if len(sys.argv) > 1:
        times = train(float(sys.argv[1]))
        if os.environ["RANK"] == "0":
            Path(sys.argv[2]).write_text(json.dumps(times), encoding="utf-8")
        return
    print("| rate | NeMo, ms a step | under ddpfix | ratio | 1 - rate |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for rate in RATES:
            turns: Dict[bool, List[List[float]]] = {False: [], True: []}
            for number in range(ROUNDS):
                # In turns, and each of them first now and then.
                for ours in (False, True) if number % 2 else (True, False):
                    turns[ours].append(measured(rate, ours, Path(folder) / "times.json"))
            means = {ours: statistics.median(map(statistics.fmean, each)) * 1e3 for ours, each in turns.items()}
            ratio = means[True] / means[False]
            print(f"| {rate} | {means[False]:.0f} | {means[True]:.0f} | {ratio:.2f} | {1 - rate:.1f} |", flush=True)


if __name__ == "__main__":
    main()
