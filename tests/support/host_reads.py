"""What reads the value of a tensor on the host, and for which a GPU would have to be waited for, by the line that asks.

On a CPU there is nothing to wait for, so it is counted: a dispatch mode sees what reads one value (``item``, ``bool``,
``equal``, ``nonzero``), and replaced methods see ``tolist``, ``numpy`` and ``cpu``, which dispatch nothing there.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from typing import Any, Iterator, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Reads = Counter[Tuple[str, str]]
_OPERATORS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique2",
}
_METHODS = ("tolist", "numpy", "cpu")
# What stands between the line that asks and this file.
_BETWEEN = ("torch/_dynamo/", "torch/utils/_python_dispatch", "torch/_compile", "torch/_ops", "support/host_reads")


def asked_by() -> str:
    """The innermost line that is none of torch's own dispatch: ``folder/file.py:line``, below ddpfix from there on."""
    frame = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in _BETWEEN):
        frame = frame.f_back  # type: ignore[assignment]
    parts = frame.f_code.co_filename.split("/")
    home = next((number for number, part in enumerate(parts) if part in ("ddpfix", "patches")), len(parts) - 2)
    return f"{'/'.join(parts[home:])}:{frame.f_lineno}"


def of_ddpfix(reads: Reads) -> Reads:
    """Those that ddpfix asks for."""
    return Counter({key: times for key, times in reads.items() if key[1].startswith(("ddpfix/", "patches/"))})


class _Mode(TorchDispatchMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _OPERATORS:
            self._reads[func._schema.name, asked_by()] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counted() -> Iterator[Reads]:
    """Count what is read within: by what reads, and by the line that asks."""
    reads: Reads = Counter()
    stock = {name: getattr(torch.Tensor, name) for name in _METHODS}

    def counting(name: str) -> Any:
        def read(self: Any, *args: Any, **options: Any) -> Any:
            reads[f"Tensor.{name}", asked_by()] += 1
            return stock[name](self, *args, **options)

        return read

    for name in _METHODS:
        setattr(torch.Tensor, name, counting(name))
    try:
        with _Mode(reads):
            yield reads
    finally:
        for name, method in stock.items():
            setattr(torch.Tensor, name, method)
