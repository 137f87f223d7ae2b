"""What a trace consists of: the file of a rank, the kinds of its lines, and what each of them has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple

VERSION = 1
# Bytes of the file of a rank, at most.
LIMIT = 64 * 2**20
# The kinds of lines in the .jsonl of a rank.
RUN, MODEL, BEGIN, STEP, EVENT, SETTING, END = "run", "model", "begin", "step", "event", "setting", "end"


class Column(NamedTuple):
    """One column of the step rows; ``kind`` is one of those of :data:`FIELDS`, ``unit`` that of its values."""

    name: str
    kind: str
    unit: str
    meaning: str


COLUMNS: Tuple[Column, ...] = (
    Column("step", "int", "", "optimizer step of this process, from 1"),
    Column("time", "float", "unix seconds", "end of the step"),
    Column("total", "float", "seconds", "from the end of the previous step to the end of this one"),
    Column("data", "float", "seconds", "in DataLoader `__next__`"),
    Column("forward", "float", "seconds", "in training forwards of wrapped models"),
    Column("backward", "float", "seconds", "in backwards, wait included"),
    Column("wait", "float", "seconds", "in backwards, for gradients of other ranks"),
    Column("optimizer", "float", "seconds", "in optimizer `step`"),
    Column("skipped", "ints", "", "skipped layers, as indices into `layers`"),
    Column("unused", "ints", "", "parameters without a gradient, as indices into `parameters`"),
    Column("peak", "int", "bytes", "peak memory so far: allocated on the GPU, else resident in the process"),
    Column("used", "int", "bytes", "memory at the end of the step: allocated on the GPU, else private to the process"),
    Column("reserved", "int", "bytes", "GPU memory reserved by torch"),
    Column("shape", "ints", "", "shape of the largest input tensor"),
)
NAMES: Tuple[str, ...] = tuple(column.name for column in COLUMNS)
# The kinds of values by name and kind of line. A line may lack each, and may have others, which nobody reads.
FIELDS: Dict[str, Dict[str, str]] = {
    RUN: {
        **dict.fromkeys(("ddpfix", "python", "torch", "command", "host"), "text"),
        **dict.fromkeys(("toolkits", "settings"), "table"),
        "world_size": "int",
        "pid": "int",
        "started": "float",
        "patches": "tables",
    },
    MODEL: {"layers": "texts", "parameters": "texts", "first_layer": "int", "first_parameter": "int"},
    BEGIN: {"step": "int", "shape": "ints"},
    STEP: {column.name: column.kind for column in COLUMNS},
    EVENT: {"time": "float", "step": "int", "level": "text", "text": "text", "finding": "table"},
    SETTING: {"name": "text"},
    END: {"time": "float", "how": "text", "finding": "table"},
}

_FILE = re.compile(r"rank-(\d{5,})(?:\.(\d+))?\.jsonl")


def lines_file(folder: Path, rank: int) -> Path:
    """Return the file with the lines of a rank."""
    return folder / f"rank-{rank:05d}.jsonl"


def rank_of(file: Path) -> Optional[Tuple[int, Optional[int]]]:
    """Return the rank and the number of the earlier process in the name of a file; None if it is no file of a trace."""
    found = _FILE.fullmatch(file.name)
    if found is None:
        return None
    return int(found[1]), None if found[2] is None else int(found[2])
