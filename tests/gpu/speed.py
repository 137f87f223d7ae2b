"""Step time and peak memory of some modes, which take turns in the same processes; a model is built anew each time."""

from __future__ import annotations

import time
from typing import Any, Dict, List

import torch

from tests.gpu import card, syncs, training, world

_WARM = 3
_MB = 2**20


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """By mode: milliseconds a step in each turn, peak memory, layers a step, and what a turn left behind."""
    options = cell["options"]
    modes: List[str] = options["modes"]
    empty: Dict[str, Any] = {"peak": 0.0, "reserved": 0.0, "left": 0.0, "error": None, "counts": {}}
    found: Dict[str, Any] = {mode: {"turns": [], "layers": [], **empty} for mode in modes}
    count, longest = 0, 0.0
    for turn in range(options["turns"]):
        begun = time.monotonic()
        # Other ranks may come later: rank 0 says whether there is time for one more turn.
        if turn and world.agreed(cell["until"] - time.time()) < 1.3 * longest:
            break
        for mode in modes[:: -1 if turn % 2 else 1]:
            if found[mode]["error"] is None:
                count = _turn(cell, mode, count, found[mode])
        longest = max(longest, time.monotonic() - begun)
    return {"modes": found, "steps": count, "size": torch.distributed.get_world_size()}


def _turn(cell: Dict[str, Any], mode: str, count: int, found: Dict[str, Any]) -> int:
    """One turn of a mode; returns how many steps are timed, which the first turn decides for all."""
    world.release()
    before = _allocated()
    # A mode that fails on all ranks takes no figures away from the others.
    done, found["error"] = world.together(lambda: _trained(cell, mode, count, found))
    found["left"] = (_allocated() - before) / _MB
    return done["count"] if done is not None else count


def _trained(cell: Dict[str, Any], mode: str, count: int, found: Dict[str, Any]) -> Dict[str, Any]:
    with training.active(mode) as chosen:
        options = cell["options"]
        made = training.Run(cell["model"], options["rate"], chosen, precision=options.get("precision", ""))
        _timed(made, _WARM)
        count = count or int(world.agreed(_steps(options["seconds"], made)))
        made.layers.clear()
        found["turns"].append(_timed(made, count))
        found["layers"] += made.layers
        _peak(found)
        # Waits and what else is counted, a step; after the steps that are timed, and once a mode.
        steps = options["profiled"]
        if not found["counts"]:
            syncs.profiled(made.step)
            counts = syncs.profiled(lambda: made.steps(steps))
            found["counts"] = {name: number / steps for name, number in counts.items()}
    return {"count": count}


def _timed(made: training.Run, count: int) -> float:
    """Milliseconds a step; nothing waits for the card between steps, as in a training loop that does not log."""
    world.barrier()
    begun = time.perf_counter()
    made.steps(count)
    world.synchronize()
    return (time.perf_counter() - begun) / count * 1000


def _steps(seconds: float, made: training.Run) -> int:
    """How many steps fit, judged by one that comes after the first ones."""
    return max(2, min(30, int(seconds * 1000 / _timed(made, 2))))


def _allocated() -> float:
    return float(torch.cuda.memory_allocated()) if card.here() else 0.0


def _peak(found: Dict[str, Any]) -> None:
    """From before the model was built to the last step; of this rank."""
    if card.here():
        found["peak"] = max(found["peak"], torch.cuda.max_memory_allocated() / _MB)
        found["reserved"] = max(found["reserved"], torch.cuda.max_memory_reserved() / _MB)
