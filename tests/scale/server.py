"""The store of a job in a process of its own: ``python -m tests.scale.server``. Tells its port, then what it bore."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Dict, Optional, Type

# A store of torch and its clients look up the names of their addresses when they connect, and where no name server
# answers, one in 25 of them waits 5 s for it. With these settings of the resolver it gives up early.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


class Server:
    """A real TCPStore in another process, as a context."""

    def __enter__(self) -> Server:
        words = [sys.executable, "-m", "tests.scale.server"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2])
        self.port = int(self._line())
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: object, trace: Optional[TracebackType]) -> None:
        self._process.kill()
        self._process.communicate()

    def bore(self) -> Dict[str, float]:
        """What the server has borne so far: ``seconds`` of processor time, ``memory`` in MB, ``keys``."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: Dict[str, float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def raise_limit() -> int:
    """Allow as many open files as the system lets this process have; returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _memory() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    raise_limit()
    from torch import distributed

    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    for _ in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        known = {"seconds": used.ru_utime + used.ru_stime, "memory": _memory(), "keys": store.num_keys()}
        print(json.dumps(known), flush=True)


if __name__ == "__main__":
    main()
