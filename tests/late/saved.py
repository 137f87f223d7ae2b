"""What a program saves and copies while it trains; each function fills ``record``."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, Callable, Dict, List

import torch
from torch import nn

from tests.late.parting import Record, batch, net, note, second_rank, wrapped

STEPS = 8


class Whole(nn.Module):
    """A module that is saved with all of its attributes, those of torch's own included."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__)


def _by_torch(value: Any) -> bytes:
    kept = io.BytesIO()
    torch.save(value, kept)
    return kept.getvalue()


WAYS: Dict[str, Callable[[Any], bytes]] = {
    "torch": _by_torch,
    "pickle": pickle.dumps,
    "deepcopy": lambda value: pickle.dumps(copy.deepcopy(value)),
    "copy": lambda value: pickle.dumps(copy.copy(value)),
}


def _saved(value: Any) -> List[str]:
    """What came of each way: "" for bytes that hold nothing of ddpfix."""
    found = []
    for way, save in WAYS.items():
        try:
            held = save(value)
        except Exception as error:
            found.append(f"{way}: {error!r}")
        else:
            found.append("" if b"ddpfix" not in held and b"patches" not in held else f"{way}: holds ddpfix")
    return found


def _hooks(model: nn.Module) -> int:
    return sum(len(held) for part in model.modules() for name, held in vars(part).items() if name.endswith("_hooks"))


def trained(record: Record, whole: bool = False, noise: bool = False, flag: bool = False) -> None:
    """Train, also a module of :class:`Whole`, or one that ranks move apart, and save all that there is in each step."""
    model = wrapped(Whole() if whole else net(), find_unused_parameters=flag)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    record["saved"], record["steps"], record["hooks"], record["copies"] = [], [], [], []
    copies = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(batch(step))
        loss = output.pow(2).mean()
        record["hooks"].append([len(each._backward_hooks or ()) for each in (output, loss, *model.parameters())])
        loss.backward()
        optimizer.step()
        if noise and second_rank():
            with torch.no_grad():
                model.module[0].weight.add_(0.1)
        record["saved"] += [*_saved(model.module), *_saved(optimizer), *_saved(output.detach())]
        record["saved"].append("" if b"ddpfix" not in _by_torch(model) else "the wrapper holds ddpfix")
        record["hooks"].append(_hooks(model))
        copies.append(copy.deepcopy(model.module))
        note(record, model)
    # A copy from any step is saved at the end of the run.
    record["copies"] = [_saved(each) for each in copies]
