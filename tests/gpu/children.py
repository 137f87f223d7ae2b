"""Programs that start a process group in a way of their own, each in a process of its own, and how quickly they end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from torch import distributed

from tests.gpu import card, world
from tests.gpu.child import LATE
from tests.gpu.launch import LOCAL

CHILD = Path(__file__).with_name("child.py")
# Seconds that the end of a process may take more than in plain torch, on a card.
_MORE = 0.2
_LIMIT = 60.0


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """One child of each rank in plain torch, and one under ddpfix: the same steps, contexts, and end."""
    if cell["kind"] == LATE:
        return _told(_child(cell, cell["mode"]))
    plain = _child(cell, "plain")
    if plain["error"]:
        # Without ddpfix a process is ended by SIGABRT now and then at its exit. All ranks know of the error.
        plain = _child(cell, "plain")
    own = _child(cell, cell["mode"])
    wrong = [f"{name}: {one['error']}" for name, one in (("plain", plain), (cell["mode"], own)) if one["error"]]
    if plain["error"]:
        return {"wrong": [], "said": "", "left_out": f"torch alone cannot do it here ({plain['error']})"}
    if not wrong:
        wrong = _differences(plain, own)
    if own["error"]:
        return {"wrong": wrong, "said": ""}
    contexts = "not here" if own["contexts"] is None else str(own["contexts"])
    ends = f"end {plain['end']:.2f} s, {own['end']:.2f} s under ddpfix"
    return {"wrong": wrong, "said": f"limit {own['limit']}; contexts {contexts}; {ends}"}


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
    port = int(world.agreed(_free_port()))
    options = {"kind": cell["kind"], "mode": mode, "cuda": card.here(), "limit": _LIMIT}
    options.update(steps=cell["options"]["steps"])
    found = _ran(_environment(port), options)
    # One that failed leaves the others waiting in its group: all are over before the next ones begin.
    errors = [each for each in world.gathered(found["error"], 1) if each]
    return {**found, "error": found["error"] or (errors[0] if errors else "")}


def _environment(port: int) -> Dict[str, str]:
    # What torch elastic has told this process is not for the child.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    environ.update(MASTER_ADDR=LOCAL, MASTER_PORT=str(port))
    environ.update(RANK=str(world.rank()), LOCAL_RANK=str(world.rank()))
    environ.update(WORLD_SIZE=str(distributed.get_world_size()))
    return environ


def _ran(environ: Dict[str, str], options: Dict[str, Any]) -> Dict[str, Any]:
    with tempfile.TemporaryFile("w+") as errors:
        found = _read(environ, options, errors)
        errors.seek(0)
        printed = errors.read()
    if found["error"]:
        print(printed[-4000:], file=sys.stderr)
    return {**found, "printed": printed.splitlines()}


def _read(environ: Dict[str, str], options: Dict[str, Any], errors: Any) -> Dict[str, Any]:
    command = [sys.executable, str(CHILD), json.dumps(options)]
    child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True)
    timer = threading.Timer(_LIMIT, child.kill)
    timer.start()
    assert child.stdout is not None
    found: Optional[Dict[str, Any]] = None
    said = 0.0
    try:
        for line in child.stdout:
            if line.startswith("{"):
                found, said = json.loads(line), time.monotonic()
        code = child.wait()
    finally:
        timer.cancel()
        child.kill()
        child.stdout.close()
    if found is None or code:
        return {"error": (found or {}).get("error") or f"exit code {code}"}
    return {"error": "", **found, "end": time.monotonic() - said}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])
