"""torch's data loaders that are in use in this process: how far they are, and how their workers are.

They are searched for when a job seems to hang, and nothing is noted before.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any, List, NamedTuple, Optional

from ddpfix.monitor import processes


class Loading(NamedTuple):
    """One pass through a loader.

    Attributes:
        batches: how many it has given.
        epoch: of its sampler; None where it has no number, or 0, which a sampler also has where nobody sets it.
    """

    batches: int
    epoch: Optional[int]
    workers: str


def of(iterator: Any) -> Loading:
    """Return the state of an iterator of torch's ``DataLoader``."""
    epoch: Optional[int] = None
    with contextlib.suppress(Exception):
        sampler = iterator._index_sampler
        found = getattr(getattr(sampler, "sampler", sampler), "epoch", None)
        epoch = found if type(found) is int and found else None
    workers, told = list(getattr(iterator, "_workers", ())), []
    for number, worker in enumerate(workers):
        state = processes.in_words(processes.lasting(worker.pid or 0))
        told += [f"its loader worker {number} (process {worker.pid}) {state}"] if state else []
    if workers and not told:
        told = [f"its {len(workers)} loader workers are alive"]
    return Loading(int(getattr(iterator, "_num_yielded", 0)), epoch, "; ".join(told))


def alive() -> List[Loading]:
    """Return the state of each iterator that is in use."""
    module: Any = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(module, "_BaseDataLoaderIter", None)
    return [] if kind is None else [of(each) for each in gc.get_objects() if issubclass(type(each), kind)]
