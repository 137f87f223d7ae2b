"""Programs that start a process group in a way of their own, each in a process of its own, and how quickly they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from tests.gpu import card, world
from tests.gpu.cells import LATE
from tests.gpu.launch import LOCAL
from tests.support import ranks

CHILD = Path(__file__).with_name("child.py")
# Seconds that the end of a process may take more than in plain torch, on a card.
_MORE = 0.2


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """One child of each rank in plain torch, and one under ddpfix: the same steps, contexts, and end."""
    if cell["kind"] == LATE:
        return _told(_child(cell, cell["mode"]))
    plain = _child(cell, "plain")
    if plain["error"]:
        # Without ddpfix a process is ended by SIGABRT now and then at its exit. All ranks know of the error.
        plain = _child(cell, "plain")
    if plain["error"]:
        return {"wrong": [], "said": "", "left_out": f"torch alone cannot do it here ({plain['error']})"}
    own = _child(cell, cell["mode"])
    if own["error"]:
        return {"wrong": [f"{cell['mode']}: {own['error']}"], "said": ""}
    contexts = "not here" if own["contexts"] is None else str(own["contexts"])
    ends = f"end {plain['end']:.2f} s, {own['end']:.2f} s under ddpfix"
    return {"wrong": _differences(plain, own), "said": f"limit {own['limit']}; contexts {contexts}; {ends}"}


def _told(own: Dict[str, Any]) -> Dict[str, Any]:
    """Whether a line of some rank says that ranks wait for the one that is late."""
    if own["error"]:
        return {"wrong": [own["error"]], "said": ""}
    lines = [line for each in world.gathered(own["printed"]) for line in each if line.startswith("ddpfix: ")]
    told = [line for line in lines if "ranks wait" in line and "rank 1" in line]
    return {"wrong": [] if told else ["no line says that ranks wait for rank 1"], "said": (told or [""])[0][8:150]}


def _differences(plain: Dict[str, Any], own: Dict[str, Any]) -> List[str]:
    wrong = {
        "trains otherwise than plain torch": plain["steps"] != own["steps"],
        f"limit {own['limit']} instead of {own['expected']}": own["limit"] != own["expected"],
        "no collective is counted": not own["counts"],
        f"contexts on {own['contexts']} instead of {plain['contexts']}": own["contexts"] != plain["contexts"],
        # Other processes of this machine make the figures of a CPU worthless.
        f"ends {own['end'] - plain['end']:.2f} s later": card.here() and own["end"] - plain["end"] > _MORE,
    }
    return [what for what, is_so in wrong.items() if is_so]


def _child(cell: Dict[str, Any], mode: str) -> Dict[str, Any]:
    """What this rank's child has printed, and how long it took to end then; an error of one is an error of all."""
    options = {"kind": cell["kind"], "mode": mode, "cuda": card.here(), "steps": cell["options"]["steps"]}
    # What torch elastic has told this process is not for the child.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    environ.update(MASTER_ADDR=LOCAL, MASTER_PORT=str(int(world.agreed(ranks.free_port()))))
    words = [sys.executable, str(CHILD), json.dumps(options)]
    ended = subprocess.run(words, env=environ, capture_output=True, text=True)
    over = time.monotonic()
    found: Dict[str, Any] = {"error": "", "at": over}
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            found.update(json.loads(line))
    if ended.returncode and not found["error"]:
        found["error"] = f"exit code {ended.returncode}"
    if found["error"]:
        print(ended.stderr[-4000:], file=sys.stderr)
    # One that failed leaves the others waiting in its group: all are over before the next ones begin.
    errors = [found["error"], *world.gathered(found["error"], 1)]
    found["error"] = next(filter(None, errors), "")
    return {**found, "end": over - found["at"], "printed": ended.stderr.splitlines()}
