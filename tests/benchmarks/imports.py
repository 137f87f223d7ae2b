"""What ddpfix adds to a process that imports torch, transformers and a model."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, List

from tests.activation.support import Place, start
from tests.benchmarks import places
from tests.benchmarks.measure import middle_half, take_turns
from tests.benchmarks.report import Figure

_CHILD = Path(__file__).with_name("import_child.py")
_MODEL = ("transformers", "transformers.models.wav2vec2.modeling_wav2vec2")


def with_toolkits(folder: Path, quick: bool) -> List[Figure]:
    """DDPFIX=1 against DDPFIX unset."""
    place = places.with_toolkits(folder / "toolkits")
    modules = () if quick else _MODEL
    said: Dict[str, List[Dict[str, Any]]] = {"stock": [], "ours": []}
    runs = {"stock": _import(place, modules, said["stock"]), "ours": _import(place, modules, said["ours"], DDPFIX="1")}
    if not quick:
        # The first start reads a gigabyte from the disk.
        runs["stock"]()
        said["stock"].clear()
    turns = take_turns(runs, 1 if quick else 3)
    torch = median(one["torch"] for one in said["stock"])
    # In the run in which each was least: more work cannot make it shorter, another job can make it longer.
    total = sum(min(one["own"] for one in of) for of in said.values())
    what = " and ".join(["torch", *modules[:1]])
    return [
        Figure("added CPU, of ddpfix and of what it needs", total, "ms", 25),
        Figure("the same, of what import torch needs", 100 * total / torch, "%", 2.5, f"import torch: {torch:.0f} ms"),
        # One process differs from the next by more than we add, so this only shows that no part was forgotten.
        Figure(
            "added CPU, least whole process",
            min(turns["ours"]) - min(turns["stock"]),
            "ms",
            note="rough: one process differs from the next by 100 ms",
        ),
        Figure(f"whole process with {what}", median(turns["stock"]), "ms", note=middle_half(turns["stock"], 0)),
    ]


def _import(place: Place, modules: Any, said: List[Dict[str, Any]], **more: str) -> Callable[[], float]:
    env = place.env(DDPFIX_LOG="off", **more)

    def run() -> float:
        done = start([place.python, _CHILD, *modules], env)
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout.splitlines()[-1]))
        return float(said[-1]["whole"])

    return run
