"""Synthetic traces in the format of ``ddpfix.trace``: as many ranks and steps as a test needs, with known content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List

GIB = 2**30
Row = Dict[str, Any]
# What is put into a row in place of, or beside, the usual: called with rank, step, row.
Change = Callable[[int, int, Row], None]


def header(rank: int, ranks: int, **more: Any) -> Row:
    return {
        "kind": "run",
        "version": 1,
        "rank": rank,
        "world_size": ranks,
        "local_rank": rank % 8,
        "host": f"node{rank // 8:04d}",
        "pid": 1000 + rank,
        "started": 1.7e9,
        "ddpfix": "0.1.0",
        "python": "3.11.2",
        "torch": "2.13.0",
        "toolkits": {"transformers": "5.23.0"},
        "command": "train.py --lr 1e-4",
        "settings": {"unused": {"value": "find", "from": "DDPFIX_UNUSED"}, "log": {"value": "info", "from": "default"}},
        "patches": [{"id": "transformers.layerdrop", "state": "applied", "reason": "5.23.0 is tested"}],
        **more,
    }


def row(rank: int, step: int, layers: int, parameters: int, own_layers: bool) -> Row:
    """One step: 0.5 s, which rank 3 takes for itself, and in which the others wait for it for 0.2 s."""
    slow = rank == 3
    # Layers from the step alone are the same on all ranks; with the rank they are not.
    seed = step * 7919 + (rank * 104729 if own_layers else 0)
    skipped = [layer for layer in range(layers) if (seed >> 3) % 97 % (layer + 5) == 0]
    per_layer = parameters // max(1, layers)
    unused = [layer * per_layer + place for layer in skipped for place in range(per_layer)]
    return {
        "kind": "step",
        "step": step,
        "time": 1.7e9 + step * 0.5,
        "total": 0.5,
        "data": 0.22 if slow else 0.02,
        "forward": 0.08,
        "backward": 0.15 if slow else 0.35,
        "wait": 0.0 if slow else 0.2,
        "optimizer": 0.03,
        "skipped": skipped,
        "unused": unused,
        "peak": (17 + (37 if step >= 30 and rank == 1 else 0)) * GIB,
        "reserved": 60 * GIB,
        "shape": [4, 2900 if step == 30 and rank == 1 else 400, 80],
    }


def write(
    folder: Path,
    ranks: int,
    steps: int,
    layers: int = 6,
    parameters: int = 24,
    own_layers: bool = False,
    change: Change = lambda rank, step, row: None,
    lines: Callable[[int], List[Row]] = lambda rank: [],
    **more: Any,
) -> Path:
    """Write a trace, and return its folder; with ``own_layers`` each rank skips layers of its own choice."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {
        "kind": "model",
        "class": "WavLMForCTC",
        "first_layer": 0,
        "first_parameter": 0,
        "layers": [f"encoder.layers.{place}" for place in range(layers)],
        "parameters": [f"encoder.layers.{place * layers // parameters}.weight{place}" for place in range(parameters)],
    }
    for rank in range(ranks):
        rows = [header(rank, ranks, **more), model]
        for step in range(1, steps + 1):
            each = row(rank, step, layers, parameters, own_layers)
            change(rank, step, each)
            rows.append(each)
        end = {"kind": "end", "time": 1.7e9 + steps * 0.5, "how": "ended"}
        text = "".join(json.dumps(each) + "\n" for each in [*rows, *lines(rank), end])
        (folder / f"rank-{rank:05d}.jsonl").write_text(text, encoding="utf-8")
    return folder
