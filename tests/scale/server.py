"""The store of a job in a process of its own: ``python -m tests.scale.server``. Tells its port."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Optional, Type

# A store of torch and its clients look up the names of their addresses when they connect, and where no name server
# answers, one in 25 of them waits 5 s for it. With these settings of the resolver it gives up early.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


class Server:
    """A real TCPStore in another process, as a context."""

    def __enter__(self) -> Server:
        words = [sys.executable, "-m", "tests.scale.server"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: object, trace: Optional[TracebackType]) -> None:
        self._process.kill()
        self._process.communicate()


def raise_limit() -> int:
    """Allow as many open files as the system lets this process have; returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def main() -> None:
    raise_limit()
    from torch import distributed

    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
