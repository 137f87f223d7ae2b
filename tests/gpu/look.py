"""What a look of the drift watch needs of a card's memory: one large parameter, trained with and without ddpfix."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import nn

from tests.gpu import card, syncs, training, world

_MB = 2**20
# Of the card, for the looks after the first two steps.
LIMIT_MB = 64.0
_ROW = 1024


def run(cell: Dict[str, Any]) -> Dict[str, Any]:
    """Peak memory and copies to the host of three steps, of which two are looked at, by mode."""
    rows = cell["options"]["megabytes" if card.here() else "on_cpu"] * _MB // (2 * _ROW)
    plain, own = (_peak(mode, rows) for mode in ("plain", cell["mode"]))
    if plain["peak"] is None or own["peak"] is None:
        return {"wrong": [], "said": f"{rows * _ROW * 2 // _MB} MB; peak: not here"}
    more = (own["peak"] - plain["peak"]) / _MB
    wrong = [f"{more:.0f} MB more"] if more >= LIMIT_MB else []
    copies = own["copies"] - plain["copies"]
    return {"wrong": wrong, "said": f"peak {own['peak'] / _MB:.0f} MB, {more:+.1f} MB; {copies:g} more copies"}


def _peak(name: str, rows: int) -> Dict[str, Any]:
    world.release()
    copies = 0
    with training.active(name) as mode:
        torch.manual_seed(5)
        inner = nn.Embedding(rows, _ROW, device=world.device(), dtype=torch.bfloat16)
        model = training.wrapped(inner, mode, 25.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # The optimizer's own room must not hide what a look needs.
        optimizer.param_groups[0]["foreach"] = False
        peaks: List[Any] = []
        for number in range(3):
            optimizer.zero_grad(set_to_none=True)
            tokens = torch.tensor([number, number + 1 + world.rank()], device=world.device())
            model(tokens).float().square().mean().backward()
            # A comparison is begun at the end of an optimizer's step, and ends at the beginning of the next one.
            if card.here():
                torch.cuda.reset_peak_memory_stats()
                copies += syncs.profiled(optimizer.step)["copies"]
            else:
                optimizer.step()
            peaks.append(card.peak())
    del model, inner, optimizer
    world.release()
    return {"peak": None if None in peaks else max(peaks), "copies": copies}
