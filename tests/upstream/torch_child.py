"""Runs some of torch's tests in this process, which forks the ranks of each: ``torch_child RECORD LIMIT NAME...``.

torch starts each rank as a new interpreter. A fork has imported torch already, with ddpfix where that is on, and takes
a tenth of the time.

Tests that ask for a GPU a rank run on the CPU: whatever they put on a GPU stays where it is. Without this, 12 of the
109 tests about DDP run on a machine without GPUs. Those that need a real GPU (streams, nccl, mixed precision) fail
then, in stock as under ddpfix, and count for nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import sys
import time
import unittest
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, TextIO, Tuple, Type, Union

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

from tests.upstream.outcomes import Outcome


def _asks_for_nothing(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda test: test


# Before the tests are imported: they are decorated then.
_common: Any = common_distributed
_common.skip_if_lt_x_gpu = _asks_for_nothing
_common.nccl_skip_if_lt_x_gpu = _asks_for_nothing
_common.skip_if_no_gpu = lambda test: test

from torch.testing._internal.distributed import distributed_test  # noqa: E402

ErrorInfo = Union[Tuple[Type[BaseException], BaseException, TracebackType], Tuple[None, None, None]]


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Takes GPUs out of the arguments of torch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        named: Dict[str, Any] = dict(kwargs or {})
        if "device" in named:
            named["device"] = _device(named["device"])
        if func is torch.Tensor.to or getattr(func, "__name__", "") == "_parse_to":
            args = tuple(map(_device, args))
        if func is torch.device:
            return torch.device("cpu")
        return func(*args, **named)


def _device(value: Any) -> Any:
    """The CPU in place of what names a GPU; anything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    number = isinstance(value, int) and not isinstance(value, bool)
    return "cpu" if number or (isinstance(value, str) and value.startswith("cuda")) else value


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """In here GPUs are asked for in vain, and DDP is not told of them."""
    cuda: Any = torch.cuda
    cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    cuda.set_device = lambda *_: None
    cuda.synchronize = lambda *_, **__: None
    cuda.device = lambda *_: contextlib.nullcontext()
    cuda.current_device = lambda: 0
    if hasattr(torch, "accelerator"):
        torch.accelerator.current_device_index = cuda.current_device
        torch.accelerator.current_stream = lambda *_: torch.cpu.current_stream()
    stock = DistributedDataParallel.__init__

    @functools.wraps(stock)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any) -> None:
        stock(self, module, None, None, *args, **kw)

    DistributedDataParallel.__init__ = init
    with OnCpu():
        yield


class Forked(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """The tests as torch's test_distributed_spawn.py puts them together, with ranks that are forked."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def names() -> List[str]:
    return [name for name in dir(Forked) if name.startswith("test_")]


class Record(unittest.TestResult):
    """Writes one line a test into a file, at its end; a test that takes much too long ends this process."""

    def __init__(self, file: TextIO, limit: float) -> None:
        super().__init__()
        self.file, self.limit, self.begun = file, limit, 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(2 * self.limit + 60, exit=True)
        self.begun = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._write(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._write(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        text = f"{type(err[1]).__name__}: {err[1]}"
        self._write(test, "hung" if "terminated or timed out" in text else "failed", text)

    addError = addFailure

    def _write(self, test: unittest.TestCase, word: str, text: str = "") -> None:
        outcome = Outcome(word, round(time.monotonic() - self.begun, 2), text[-6000:])
        line = {"name": test.id().split(".")[-1], "outcome": asdict(outcome)}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def main(record: str, limit: str, *tests: str) -> None:
    _common.get_timeout = lambda _: float(limit)
    with Path(record).open("a") as file, on_cpu():
        unittest.TestSuite(Forked(name) for name in tests).run(Record(file, float(limit)))


if __name__ == "__main__":
    main(*sys.argv[1:])
