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
    Column("step", "int", "", "the optimizer step of this process, from 1"),
    Column("epoch", "int", "", "the epoch of the sampler, where it has one"),
    Column("micro", "int", "", "micro-batches (backwards) of the step"),
    Column("time", "float", "unix seconds", "the end of the step"),
    Column("total", "float", "seconds", "from the end of the step before to the end of this one"),
    Column("data", "float", "seconds", "in the `__next__` of DataLoaders"),
    Column("forward", "float", "seconds", "in training forwards of wrapped models"),
    Column("backward", "float", "seconds", "in backwards, the wait included"),
    Column("wait", "float", "seconds", "in backwards, for gradients of other ranks"),
    Column("optimizer", "float", "seconds", "in the optimizer's `step`"),
    Column("skipped", "ints", "", "layers that were skipped, as indices into the model's `layers`"),
    Column("unused", "ints", "", "parameters without a gradient, as indices into the model's `parameters`"),
    Column("sent", "int", "bytes", "gradients that were communicated"),
    Column("peak", "int", "bytes", "most memory so far: allocated on the GPU, else resident of the process"),
    Column("used", "int", "bytes", "memory at the end of the step: as `peak`, but without files and shared memory"),
    Column("reserved", "int", "bytes", "memory that torch holds on the GPU"),
    Column("shape", "ints", "", "shape of the largest input tensor of the step"),
    Column("samples", "int", "", "samples of the batches, where the DataLoader has torch's own samplers"),
    Column("padding", "float", "0..1", "part of the attention mask that is padding"),
    Column("loss", "float", "", "what `backward()` was called on, summed over the micro-batches"),
    Column("norm", "float", "", "the norm that `clip_grad_norm_` returned"),
    Column("every", "int", "", "one row stands for so many steps, where the file comes near its bound"),
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
