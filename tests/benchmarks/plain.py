"""What a plain DDP step costs in which every parameter is used: the commonest one of all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

from tests.benchmarks.report import Figure
from tests.support import ranks

CHILD = Path(__file__).with_name("plain_child.py")
# Microseconds, of one layer; with many the hooks of parameters would show.
MOST = 5.0
LAYERS = (1, 50)


def a_step(folder: Path, quick: bool) -> List[Figure]:
    """Microseconds added to the step of a small model and of one with many parameters."""
    figures: List[Figure] = []
    for layers in LAYERS:
        found = _measured(folder, layers, 20 if quick else 10_000 // layers)
        name = f"{layers} layers" if layers > 1 else "1 layer"
        figures.append(Figure(name, found["whole"], "µs", MOST if layers == 1 else None, f"of {found['plain']:.0f} µs"))
        if layers == 1:
            figures += [Figure(f"  {part}", found[part], "µs") for part in ("forward", "backward", "optimizer")]
    return figures


def _measured(folder: Path, layers: int, pairs: int) -> Dict[str, float]:
    command = [sys.executable, str(CHILD), str(layers), str(pairs), str(folder / f"store-{layers}")]
    done = subprocess.run(command, env=ranks.environment(), stdout=subprocess.PIPE, check=True)
    found: Dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
