"""A trace beside numbers that are read by hand: wait and peak; and from which threads the card is asked."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set
from unittest import mock

import torch

from tests.gpu import card, programs, world
from tests.gpu.training import active

_ASKED = ("query", "elapsed_time", "record", "synchronize")


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    peaks: List[Optional[int]] = []
    with tempfile.TemporaryDirectory(prefix="ddpfix-gpu-") as folder, _threads() as threads:
        with active(cell["mode"], trace=folder) as mode:
            torch.manual_seed(5)
            program = programs.Trained(mode)
            for number in range(cell["options"]["steps"]):
                program.step(number)
                peaks.append(card.peak())
            world.synchronize()
        return _compared(Path(folder), peaks, threads)


def _compared(folder: Path, peaks: List[Optional[int]], threads: Set[str]) -> Dict[str, Any]:
    from ddpfix.trace import reader

    rows = reader.read(folder).runs[world.rank()].steps
    wrong = [] if len(rows["step"]) == len(peaks) else [f"steps {rows['step']}"]
    if not all(_within(wait, whole) for wait, whole in zip(rows["wait"], rows["total"])):
        wrong.append(f"waits {rows['wait']} are no part of {rows['total']}")
    if card.here() and not all(_near(mine, other) for mine, other in zip(rows["peak"], peaks)):
        wrong.append(f"peak {rows['peak'][-1]} instead of {peaks[-1]}")
    if threads:
        wrong.append(f"a thread of ddpfix asks the card for {', '.join(sorted(threads))}")
    held = card.contexts()
    if held is not None and held != [world.device().index]:
        wrong.append(f"this process has contexts on devices {held}")
    contexts = "not here" if held is None else f"{len(held)} a process"
    told = "equal" if card.here() else "not here"
    return {"wrong": wrong, "said": f"{len(rows['step'])} rows; contexts: {contexts}; peaks: {told}"}


def _within(wait: Optional[float], whole: Optional[float]) -> bool:
    return wait is not None and whole is not None and 0.0 <= wait <= whole + 1e-3


def _near(mine: Optional[int], other: Optional[int]) -> bool:
    # The trace itself may ask for a number's room in between.
    return mine is not None and other is not None and abs(mine - other) <= 2**16


@contextlib.contextmanager
def _threads() -> Iterator[Set[str]]:
    """What threads of ddpfix ask an event of a card for."""
    from ddpfix import log

    seen: Set[str] = set()

    def noted(name: str, function: Any) -> Any:
        def asked(*args: Any, **kwargs: Any) -> Any:
            # They have no names: threading does not list them.
            if threading.get_ident() in log.NOTED.unlisted:
                seen.add(name)
            return function(*args, **kwargs)

        return asked

    event: Any = torch.cuda.Event
    with mock.patch.multiple(event, **{name: noted(name, getattr(event, name)) for name in _ASKED}):
        yield seen
