"""What reads the value of a tensor on the host, and for which a GPU would have to be waited for, by the line that asks.

On a CPU there is nothing to wait for, so calls from Python are counted, of the methods and functions that read. A mode
of torch's would see more of them, but ddpfix does less while one is on.
"""

from __future__ import annotations

import contextlib
import sys
import typing
from collections import Counter
from types import FrameType
from typing import Any, Iterator, Optional, Tuple
from unittest import mock

import torch

Reads = typing.Counter[Tuple[str, str]]
_METHODS = (
    *("item", "tolist", "numpy", "cpu", "equal", "allclose", "is_nonzero", "nonzero", "masked_select", "unique"),
    *("__bool__", "__float__", "__int__", "__index__", "__complex__", "__array__", "__contains__"),
)
_FUNCTIONS = ("equal", "allclose", "is_nonzero", "nonzero", "masked_select", "unique")
# Values that are on the CPU in a job on a GPU as well.
ON_THE_HOST = {
    "ddpfix.layerdrop.shared_skips": "the comparison of a number that the model has drawn there, which it reads itself",
    "ddpfix.layerdrop.recompute": "the state of the generator",
}
# What stands between the line that asks and this file.
_BETWEEN = (
    *("torch/_dynamo/", "torch/utils/_python_dispatch", "torch/_compile", "torch/_ops", "support/host_reads"),
    "accelerator/stand_in",
)


def asked_by() -> str:
    """The innermost line that is none of torch's own dispatch: ``module:line``; "" in a thread that runs C++ only."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in _BETWEEN):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_globals.get('__name__')}:{frame.f_lineno}"


def of_ddpfix(reads: Reads) -> Reads:
    """Those that ddpfix asks for, and that would be on a GPU in a job with one."""
    own = {key: times for key, times in reads.items() if key[1].startswith("ddpfix.")}
    return Counter({key: times for key, times in own.items() if key[1].partition(":")[0] not in ON_THE_HOST})


@contextlib.contextmanager
def counted() -> Iterator[Reads]:
    """Count what is read within: by what reads, and by the line that asks."""
    reads: Reads = Counter()

    def counting(name: str, stock: Any) -> Any:
        def read(*args: Any, **options: Any) -> Any:
            reads[name, asked_by()] += 1
            return stock(*args, **options)

        return read

    with contextlib.ExitStack() as opened:
        for owner, names in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS)):
            for name in names:
                stock = getattr(owner, name)
                opened.enter_context(mock.patch.object(owner, name, counting(name, stock)))
        yield reads
