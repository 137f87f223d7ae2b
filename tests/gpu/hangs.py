"""Whether ddpfix sees that a rank waits for its card: the main thread stands, another one asks where.

A rank whose card hangs in a collective stands in the same places. Here the card sleeps for some seconds; what
comes after it waits. Without a card the thread sleeps in its place, and nothing is judged.
"""

from __future__ import annotations

import importlib
import sys
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
Act = Callable[[], None]
_TOOLKIT = "def log(loss, rest):\n    rest()\n    return loss.item()\n"


class Look(NamedTuple):
    still: float
    may_wait: bool
    phase: str


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """Rank 0 stands; the others wait for the end of it."""
    if world.rank():
        return {"wrong": [], "said": ""}
    late = card.Sleep()
    value = torch.ones((), device=world.device(), requires_grad=True)
    with tempfile.TemporaryDirectory() as folder:
        # What needs memory comes before: to ask the card for it may be a wait, too.
        act = KINDS[cell["kind"]](value, Path(folder))
        world.synchronize()
        watch = Watch()
        begun = time.monotonic()
        late(_SLEEP)
        act()
        looks = watch.end()
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


class Watch:
    """Asks a tracker of ddpfix four times a second where the main thread is."""

    def __init__(self) -> None:
        from ddpfix.monitor.position import Tracker
        from ddpfix.monitor.watch import Rank

        self._looks: List[Look] = []
        self._over = threading.Event()
        self._tracker = Tracker(Rank(world.rank(), 1, lambda: None))
        self._thread = threading.Thread(target=self._follow, name="test", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._over.wait(0.25):
            self._tracker.look()
            position = self._tracker.position()
            self._looks.append(Look(position.still, self._tracker.may_wait(), position.phase))

    def end(self) -> List[Look]:
        self._over.set()
        self._thread.join()
        return self._looks


def _rest() -> None:
    """On a CPU nothing makes the thread stand but this."""
    if not card.here():
        time.sleep(_ASLEEP_ON_CPU)


def _script(value: torch.Tensor, folder: Path) -> Act:
    def act() -> None:
        _rest()
        value.item()

    return act


def _toolkit(value: torch.Tensor, folder: Path) -> Act:
    """The line is one of an installed package."""
    package = folder / "site-packages" / "ddpfix_gpu_toolkit"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_TOOLKIT)
    sys.path.insert(0, str(package.parent))
    try:
        importlib.invalidate_caches()
        module: Any = importlib.import_module(package.name)
    finally:
        sys.path.remove(str(package.parent))
        sys.modules.pop(package.name, None)
    return lambda: module.log(value, _rest)


def _scaler(value: torch.Tensor, folder: Path) -> Act:
    """A gradient scaler asks whether anything was infinite."""
    parameter = nn.Parameter(torch.ones(4, device=world.device()))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(world.device().type, init_scale=4.0)
    scaler.scale((parameter * value).sum()).backward()

    def act() -> None:
        _rest()
        scaler.step(optimizer)

    return act


class Long(nn.Module):  # type: ignore[misc, unused-ignore]
    """Launches more than the queue holds."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(_LAUNCHES if card.here() else 10):
                value = value + 1
        _rest()
        return value


def _queue(value: torch.Tensor, folder: Path) -> Act:
    model = Long()
    model(torch.ones_like(value))

    def act() -> None:
        model(value)

    return act


KINDS: Dict[str, Callable[[torch.Tensor, Path], Act]] = {
    ".item() in the script": _script,
    ".item() in a toolkit": _toolkit,
    "GradScaler": _scaler,
    "a full launch queue": _queue,
}
