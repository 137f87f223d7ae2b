"""Scalars for TensorBoard: what the figures show over steps, one value a column of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddpfix.cli.report import words

_SERIES = (
    ("seconds", ("total", "data", "forward", "backward", "wait", "optimizer")),
    ("gradients", ("sent", "unsent", "norm")),
    ("parameters", ("unused",)),
    ("layers", ("skipped",)),
    ("data", ("padding",)),
    ("train", ("loss",)),
)


def write(folder: Path, data: Dict[str, Any], writer: Any) -> None:
    """Write event files into a folder.

    Args:
        folder: TensorBoard shows it under this name.
        data: of one run.
        writer: ``torch.utils.tensorboard.SummaryWriter``.
    """
    steps = [min(last, data["steps"]) for _, last in data["columns"]]
    with writer(str(folder)) as board:
        for tag, values in _tags(data):
            for step, value in zip(steps, values):
                if value is not None:
                    board.add_scalar(tag, value, step)
        layers = data["layers"]
        if layers is not None:
            for place, (_, last) in enumerate(layers["columns"]):
                value = sum(each[place] for each in layers["disagreed"])
                board.add_scalar("layers/disagreements", value, min(last, data["steps"]))


def _tags(data: Dict[str, Any]) -> Iterator[Tuple[str, List[Optional[float]]]]:
    """Yield the mean of the ranks; of times and the loss, also the rank with the most."""
    for group, names in _SERIES:
        for name in names:
            series = data["series"][name]
            yield f"{group}/{name}", series["mean"]
            if group in ("seconds", "train"):
                yield f"{group}/{name}_of_the_rank_with_most", series["high"]
    peaks = [[value for value in column if value is not None] for column in zip(*data["memory"]["peak"])]
    yield "memory/peak_gib", [max(column) / words.GIB if column else None for column in peaks]
