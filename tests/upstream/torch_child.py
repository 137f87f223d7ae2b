"""Runs some of torch's tests in this process, which forks the ranks of each: ``torch_child RECORD LIMIT NAME...``.

torch starts each rank as a new interpreter. A fork has imported torch already, with ddpfix where that is on, and takes
a tenth of the time.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
import unittest
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, List, TextIO, Tuple, Type, Union

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
    common: Any = common_distributed
    common.get_timeout = lambda _: float(limit)
    with Path(record).open("a") as file, on_cpu():
        unittest.TestSuite(Forked(name) for name in tests).run(Record(file, float(limit)))


if __name__ == "__main__":
    main(*sys.argv[1:])
