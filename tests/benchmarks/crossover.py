"""From which size of layers on buckets of their own pay, by what is measured: ``python -m tests.benchmarks.crossover``.

Two gloo ranks measure what collectives cost, over a loopback and over slowed ones, as they do when a model that skips
layers is wrapped; the table has how many layers share a bucket then (0: buckets stay as torch makes them).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

# Megabytes a second; 0 is the loopback itself.
NETWORKS = (0, 1000, 200)
# Megabytes of a layer, of which a model has twelve; WavLM-base has 28, and 7 at half of its width.
LAYERS = (0.1, 1, 3, 7, 28)
RATES = (0.5, 0.1)
_CAP = 25 << 20


def child() -> None:
    """One rank."""
    import torch
    from ddpfix.patches.torch.buckets import cost
    from torch import distributed

    from tests.benchmarks import slowed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rows = []
    for network in NETWORKS:
        costs = cost.measured(slowed.group(network) if network else None, torch.device("cpu"))
        for rate in RATES:
            found = [_plan(size, rate, costs) for size in LAYERS]
            rows.append({"network": network, "rate": rate, "costs": vars(costs), "plans": found})
    if distributed.get_rank() == 0:
        print("FOUND " + json.dumps(rows), flush=True)


def _plan(size: float, rate: float, costs: Any) -> List[float]:
    from ddpfix.patches.torch.buckets import cost

    layers = [(int(size * 1e6), rate)] * 12
    whole = 12.0 * layers[0][0]
    plans = [cost._plan(together, layers, whole, _CAP, costs, False) for together in range(1, 13)]
    best = max(plans, key=lambda plan: plan.gain)
    return [best.together, best.gain] if best.gain > 0 else [0, 0.0]


def table(rows: List[Dict[str, Any]]) -> str:
    head = ["network", "a collective, us", "a MB, ms", "a hook, us a bucket", "ms a MB", "rate"]
    lines = ["| " + " | ".join([*head, *(f"{size} MB" for size in LAYERS)]) + " |", "|---" * (6 + len(LAYERS)) + "|"]
    for row in rows:
        costs = row["costs"]
        shown = [f"{row['network']} MB/s" if row["network"] else "loopback", f"{costs['collective'] * 1e6:.0f}"]
        shown += [f"{costs['byte'] * 1e9:.2f}", f"{costs['launch'] * 1e6:.0f}", f"{costs['copy'] * 1e9:.3f}"]
        cells = [f"{plan[0]:.0f} ({plan[1] * 1e3:.1f} ms)" if plan[0] else "0" for plan in row["plans"]]
        lines.append("| " + " | ".join([*shown, str(row["rate"]), *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    print(table(json.loads(done.stdout.split("FOUND ")[1])))


if __name__ == "__main__":
    child() if "RANK" in os.environ else main()
