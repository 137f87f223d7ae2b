"""What a trace consists of: the file of a rank, the kinds of its lines, and the columns of a step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Optional, Tuple

VERSION = 1
# The kinds of lines in the .jsonl of a rank.
RUN, MODEL, BEGIN, STEP, EVENT, SETTING, PATCHES, AT, END = (
    "run",
    "model",
    "begin",
    "step",
    "event",
    "setting",
    "patches",
    "at",
    "end",
)
# Bytes of the file of a rank, at most.
LIMIT = 64 * 2**20
# Where a rank is, as lines of the kind "at" and the columns of times name it.
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = "data", "forward", "backward", "optimizer", "other"


class Column(NamedTuple):
    """One column of the step rows.

    Attributes:
        kind: ``int``, ``float`` or ``ints`` (a list of integers).
        unit: of its values; "" for a number without one.
    """

    name: str
    kind: str
    unit: str
    meaning: str


COLUMNS: Tuple[Column, ...] = (
    Column("step", "int", "", "optimizer step of this process, from 1"),
    Column("epoch", "int", "", "epoch of the sampler, if it has one"),
    Column("micro", "int", "", "micro-batches (backwards) in the step"),
    Column("time", "float", "unix seconds", "end of the step"),
    Column("total", "float", "seconds", "from the end of the previous step to the end of this one"),
    Column("data", "float", "seconds", "in DataLoader `__next__`"),
    Column("forward", "float", "seconds", "in training forwards of wrapped models"),
    Column("backward", "float", "seconds", "in backwards, wait included"),
    Column("wait", "float", "seconds", "in backwards, for gradients of other ranks"),
    Column("optimizer", "float", "seconds", "in optimizer `step`"),
    Column("skipped", "ints", "", "skipped layers, as indices into `layers`"),
    Column("unused", "ints", "", "parameters without a gradient, as indices into `parameters`"),
    Column("sent", "int", "bytes", "communicated gradients"),
    Column("peak", "int", "bytes", "peak memory so far: allocated on the GPU, else resident in the process"),
    Column("used", "int", "bytes", "memory at the end of the step: allocated on the GPU, else private to the process"),
    Column("reserved", "int", "bytes", "GPU memory reserved by torch"),
    Column("shape", "ints", "", "shape of the largest input tensor"),
    Column("samples", "int", "", "samples in the step, if the DataLoader uses torch's own samplers"),
    Column("padding", "float", "0..1", "share of the attention mask that is padding"),
    Column("loss", "float", "", "the tensor that `backward()` was called on, summed over micro-batches"),
    Column("norm", "float", "", "norm returned by `clip_grad_norm_`"),
    Column("every", "int", "", "steps per row, once the file nears its limit"),
)
NAMES: Tuple[str, ...] = tuple(column.name for column in COLUMNS)

_FILE = re.compile(r"rank-(\d{5,})(?:\.(\d+))?\.jsonl")


def lines_file(folder: Path, rank: int, attempt: Optional[int] = None) -> Path:
    """Return the file with the lines of a rank; ``attempt`` is the number of an earlier process of this rank."""
    return folder / f"rank-{rank:05d}{'' if attempt is None else f'.{attempt}'}.jsonl"


def rank_of(file: Path) -> Optional[Tuple[int, Optional[int]]]:
    """Return the rank and the number of the earlier process in the name of a file; None if it is no file of a trace."""
    found = _FILE.fullmatch(file.name)
    if found is None:
        return None
    return int(found[1]), None if found[2] is None else int(found[2])
