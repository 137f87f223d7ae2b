"""Runs some of torch's tests in this process, which forks the ranks of each: ``torch_child RECORD LIMIT NAME...``.

torch starts each rank as a new interpreter. A fork has imported torch already, with ddpfix where that is on, and takes
a tenth of the time.
"""

from __future__ import annotations

import json
import sys
import time
import unittest
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, List, Optional, TextIO, Tuple, Type, Union

import torch
from torch.testing._internal import common_distributed

from tests.upstream.on_cpu import on_cpu
from tests.upstream.outcomes import Outcome

# What asks for GPUs has to be changed before.
from torch.testing._internal.distributed import distributed_test  # isort: skip

ErrorInfo = Union[Tuple[Type[BaseException], BaseException, TracebackType], Tuple[None, None, None]]


class Forked(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """The tests as torch's test_distributed_spawn.py puts them together, with ranks that are forked."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def names() -> List[str]:
    return [name for name in dir(Forked) if name.startswith("test_")]


class Record(unittest.TestResult):
    """Writes one line a test into a file, at its end."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self.file, self.begun = file, 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.begun = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._write(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._write(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self._failed(test, err[1])

    def addError(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self._failed(test, err[1])

    def _failed(self, test: unittest.TestCase, error: Optional[BaseException]) -> None:
        text = f"{type(error).__name__}: {error}"
        hung = "terminated or timed out" in text
        self._write(test, "hung" if hung else "failed", text)

    def _write(self, test: unittest.TestCase, word: str, text: str = "") -> None:
        outcome = Outcome(word, round(time.monotonic() - self.begun, 2), text[-6000:])
        line = {"name": test.id().split(".")[-1], "outcome": asdict(outcome)}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def main(record: str, limit: str, *tests: str) -> None:
    common: Any = common_distributed
    common.get_timeout = lambda _: float(limit)
    with Path(record).open("a") as file, on_cpu():
        unittest.TestSuite(Forked(name) for name in tests).run(Record(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
