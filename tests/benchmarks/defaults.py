"""What users of the settings get beside plain torch with the flag: ``python -m tests.benchmarks.defaults [--quick]``.

A mixture of experts of which each rank uses others, LayerDrop of the user's own, which nobody knows of, and WavLM with
layers far below DDP's bucket size; over the loopback and over a slowed one. The first two also with parameters marked
at the end of backward only, which is what marking at its start is measured against.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Sequence

from tests.benchmarks.unused import spread
from tests.support import ranks

CHILD = Path(__file__).with_name("settings_child.py")
# Megabytes a second; 0 is the loopback itself.
NETWORKS = (0, 200)


def plans(quick: bool) -> List[Dict[str, Any]]:
    length = {"turns": 2, "steps": 1, "warm": 3} if quick else {"turns": 30, "steps": 3, "warm": 4}
    found: List[Dict[str, Any]] = []
    for network in NETWORKS:
        each = {**length, "bandwidth": network}
        for model in ("experts", "own LayerDrop"):
            found.append({**each, "model": model, "cap": 2.8, "settings": {}, "at_end": True})
        for setting in ("auto", "late"):
            found.append({**each, "model": "WavLM", "settings": {"unused": setting}})
    return found


def run(wanted: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What two ranks found, plan by plan."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "plans.json").write_text(json.dumps(list(wanted)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        code, output = ranks.run([*command, str(CHILD), folder], ranks.environment(), Path(folder), 1200)
        assert code == 0, output
        found: List[Dict[str, Any]] = json.loads(Path(folder, "settings.json").read_text())
    return found


def table(found: Sequence[Dict[str, Any]]) -> str:
    head = ["model", "network", "DDPFIX_UNUSED", "flag", "torch + flag", "ddpfix", "marked at the end only"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for each in found:
        plan, turns = each["plan"], each["turns"]
        base = turns["torch + flag"]
        cells = [plan["model"], f"{plan['bandwidth']} MB/s" if plan["bandwidth"] else "loopback"]
        cells += [plan["settings"].get("unused", "auto"), "yes" if each["flag"] else "no", f"1 = {median(base):.0f} ms"]
        for name in ("ddpfix", "at the end"):
            cells.append(spread([one / other for one, other in zip(turns[name], base)]) if name in turns else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.defaults")
    parser.add_argument("--quick", action="store_true", help="run everything, measure hardly anything")
    chosen = parser.parse_args(words)
    print(table(run(plans(chosen.quick))))


if __name__ == "__main__":
    main(sys.argv[1:])
