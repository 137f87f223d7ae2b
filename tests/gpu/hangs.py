"""Whether ddpfix sees that a rank waits for its card: the main thread stands, another one asks where.

A rank whose card hangs in a collective stands in the same places. Here the card sleeps for some seconds; what
comes after it waits. Without a card the thread sleeps in its place, and nothing is judged.
"""

from __future__ import annotations

import runpy
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

import torch
from torch import nn

from tests.gpu import card, world

# Seconds: how long the card sleeps, and after which of them ddpfix has to know.
_SLEEP, _KNOWN = 6.0, 4.0
_ASLEEP_ON_CPU = 0.6
# More than the queue of launches holds.
_LAUNCHES = 4000
Act = Callable[[], Any]


class Look(NamedTuple):
    still: float
    may_wait: bool
    phase: str


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """Rank 0 stands; the others wait for the end of it."""
    if world.rank():
        return {"wrong": [], "said": ""}
    value = torch.ones((), device=world.device(), requires_grad=True)
    with tempfile.TemporaryDirectory() as folder:
        # What needs memory, and how long a cycle is, comes before: to ask the card for it may be a wait, too.
        act = KINDS[cell["kind"]](value, Path(folder))
        card.sleep(0.0)
        world.synchronize()
        begun = time.monotonic()
        looks = _looks(act)
    if not card.here():
        return {"wrong": [], "said": f"not here; {len(looks)} looks, {looks[-1].phase}"}
    return _judged(looks, time.monotonic() - begun)


def _judged(looks: List[Look], seconds: float) -> Dict[str, Any]:
    known = [each for each in looks if each.still >= _KNOWN]
    if not known:
        return {"wrong": [f"the thread never stood for {_KNOWN:g} s of {seconds:.1f}"], "said": ""}
    phases = ", ".join(sorted({each.phase for each in known}))
    wrong = [] if all(each.may_wait for each in known) else [f"no wait is seen: {phases}"]
    return {"wrong": wrong, "said": f"{phases} after {known[0].still:.1f} s of {seconds:.1f}"}


def _looks(act: Act) -> List[Look]:
    """Where a tracker of ddpfix sees the main thread, four times a second, while it acts after the card's sleep."""
    from ddpfix.monitor.position import Tracker
    from ddpfix.monitor.watch import Rank

    looks: List[Look] = []
    over, tracker = threading.Event(), Tracker(Rank(world.rank(), 1, lambda: None))

    def follow() -> None:
        while not over.wait(0.25):
            tracker.look()
            position = tracker.position()
            looks.append(Look(position.still, tracker.may_wait(), position.phase))

    thread = threading.Thread(target=follow, name="test", daemon=True)
    thread.start()
    card.sleep(_SLEEP)
    if not card.here():
        time.sleep(_ASLEEP_ON_CPU)
    act()
    over.set()
    thread.join()
    return looks


def _script(value: torch.Tensor, folder: Path) -> Act:
    return lambda: value.item()


def _toolkit(value: torch.Tensor, folder: Path) -> Act:
    """The line is one of an installed package."""
    file = folder / "site-packages" / "ddpfix_gpu_toolkit.py"
    file.parent.mkdir()
    file.write_text("def log(loss):\n    return loss.item()\n")
    module = runpy.run_path(str(file))
    return lambda: module["log"](value)


def _scaler(value: torch.Tensor, folder: Path) -> Act:
    """A gradient scaler asks whether anything was infinite."""
    parameter = nn.Parameter(torch.ones(4, device=world.device()))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(world.device().type, init_scale=4.0)
    scaler.scale((parameter * value).sum()).backward()
    return lambda: scaler.step(optimizer)


class Long(nn.Module):  # type: ignore[misc, unused-ignore]
    """Launches more than the queue holds."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(_LAUNCHES if card.here() else 10):
                value = value + 1
        return value


def _queue(value: torch.Tensor, folder: Path) -> Act:
    model = Long()
    model(torch.ones_like(value))
    return lambda: model(value)


KINDS: Dict[str, Callable[[torch.Tensor, Path], Act]] = {
    ".item() in the script": _script,
    ".item() in a toolkit": _toolkit,
    "GradScaler": _scaler,
    "a full launch queue": _queue,
}
