"""What two real ranks gain and lose, and what a plain step of one costs in which every parameter is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Optional

from tests.benchmarks.measure import Figure, middle_half
from tests.support import ranks

_CHILD = Path(__file__).with_name("child.py")
# Microseconds, of one layer; with many the hooks of parameters would show.
MOST = 5.0
LAYERS = (1, 50)


def a_step(folder: Path, quick: bool) -> List[Figure]:
    """A step with shared decisions, against stock with find_unused_parameters=True and decisions of each rank's own."""
    command = [*ranks.elastic(2), str(_CHILD), "ranks", str(folder), *(["--quick"] if quick else [])]
    code, output = ranks.run(command, ranks.environment(), folder, 240)
    assert code == 0, output
    return [figure for found in json.loads((folder / "found.json").read_text()) for figure in _of_rate(found)]


def _of_rate(found: Dict[str, Any]) -> Iterator[Figure]:
    name, turns = f"layerdrop {found['rate']}", found["turns"]
    # A rank that skips more waits for the other one. Where ranks have a core each, a step takes what the busier rank
    # needs; where they share their cores with other jobs, wall time shows the other jobs more than anything else.
    yield _of_stock(f"{name}: CPU of the busier rank / stock", found["busy"], "ms", 1)
    yield _of_stock(f"{name}: layers of the busier rank / stock", found["layers"], "layers")
    ratios = [one / other for one, other in zip(turns["ours"], turns["stock"])]
    note = f"{median(turns['stock']):.0f} ms in stock; {middle_half(ratios, 2)}"
    yield Figure(f"{name}: wall time / stock", median(ratios), "x", note=note)


def _of_stock(name: str, values: Dict[str, float], unit: str, target: Optional[float] = None) -> Figure:
    note = f"{values['ours']:.1f} / {values['stock']:.1f} {unit} a step"
    return Figure(name, values["ours"] / values["stock"], "x", target, note)


def a_plain_step(folder: Path, quick: bool) -> List[Figure]:
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
    command = [sys.executable, str(_CHILD), "plain", str(layers), str(pairs), str(folder / f"store-{layers}")]
    done = subprocess.run(command, env=ranks.environment(), stdout=subprocess.PIPE, check=True)
    found: Dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
