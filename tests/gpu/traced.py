"""A trace beside numbers that are read by hand: loss, norm, wait and peak; and from which threads the card is asked."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

import torch

from tests.gpu import alike, card, world
from tests.gpu.modes import active

# A loss is copied as it is; a trace keeps six digits of times.
_APART = 1e-6
_ASKED = ("query", "elapsed_time", "record", "synchronize")


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ddpfix-gpu-") as folder, _threads() as threads:
        with active(cell["mode"], trace=folder) as mode:
            seen = _trained(mode, cell["options"]["steps"])
        return _compared(Path(folder), seen, threads)


def _trained(mode: Any, steps: int) -> Dict[str, List[Any]]:
    """Losses and norms, which stay on the card until the end; the peak after each step."""
    seen: Dict[str, List[Any]] = {"loss": [], "norm": [], "peak": []}
    torch.manual_seed(5)
    model = alike.wrapped(alike.stack(6), mode)
    optimizer = alike.sgd(model)
    for number in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(alike.data(number)).square().mean()
        loss.backward()
        seen["norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        seen["loss"].append(loss.detach())
        seen["peak"].append(card.peak())
    world.synchronize()
    return {name: [None if each is None else float(each) for each in values] for name, values in seen.items()}


def _compared(folder: Path, seen: Dict[str, List[Any]], threads: Set[str]) -> Dict[str, Any]:
    from ddpfix.trace import reader

    rows = reader.read(folder).runs[world.rank()].steps
    wrong = [
        f"{name} differs from what was read by hand" for name in ("loss", "norm") if _differ(rows[name], seen[name])
    ]
    if not all(_within(wait, whole) for wait, whole in zip(rows["wait"], rows["total"])):
        wrong.append(f"waits {rows['wait']} are no part of {rows['total']}")
    if card.here() and not all(_near(mine, other) for mine, other in zip(rows["peak"], seen["peak"])):
        wrong.append(f"peak {rows['peak'][-1]} instead of {seen['peak'][-1]:.0f}")
    if threads:
        wrong.append(f"a thread of ddpfix asks the card for {', '.join(sorted(threads))}")
    held = card.contexts()
    if held is not None and held != [world.device().index]:
        wrong.append(f"this process has contexts on devices {held}")
    contexts = "not here" if held is None else f"{len(held)} a process"
    peaks = "equal" if card.here() else "not here"
    return {"wrong": wrong, "said": f"{len(rows['loss'])} rows; contexts: {contexts}; peaks: {peaks}"}


def _differ(found: List[Optional[float]], by_hand: List[float]) -> bool:
    pairs = list(zip(found, by_hand))
    return len(found) != len(by_hand) or any(one is None or abs(one - other) > _APART for one, other in pairs)


def _within(wait: Optional[float], whole: Optional[float]) -> bool:
    return wait is not None and whole is not None and 0.0 <= wait <= whole + 1e-3


def _near(mine: Optional[int], other: float) -> bool:
    # The trace itself may ask for a number's room in between.
    return mine is not None and abs(mine - other) <= 2**16


@contextlib.contextmanager
def _threads() -> Iterator[Set[str]]:
    """What threads of ddpfix ask an event of a card for."""
    from ddpfix import log

    seen: Set[str] = set()
    kind: Any = torch.cuda.Event
    stock = {name: getattr(kind, name) for name in _ASKED}

    def noted(name: str, function: Any) -> Any:
        def asked(*args: Any, **kwargs: Any) -> Any:
            # They have no names: threading does not list them.
            if threading.get_ident() in log.NOTED.unlisted:
                seen.add(name)
            return function(*args, **kwargs)

        return asked

    for name, function in stock.items():
        setattr(kind, name, noted(name, function))
    try:
        yield seen
    finally:
        for name, function in stock.items():
            setattr(kind, name, function)
