"""Runs programs on real ranks, in plain torch and under ddpfix, in processes that are started once."""

from __future__ import annotations

import contextlib
import json
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List

from torch import distributed

from tests.harm.loops import plan, source
from tests.harm.loops.kit import BY_HAND
from tests.support import ranks

# What each kind of process trains a program as.
MODES: Dict[str, List[str]] = {"plain": [*BY_HAND, "ddp"], "ddpfix": ["ddp"]}
# Seconds until ranks that do not end are killed.
LIMIT = 40.0


@dataclass
class Run:
    """How a program ended on each rank of one kind of process.

    Attributes:
        records: by rank, then by mode.
        logs: by rank, what it printed.
        killed: whether ranks had to be killed.
    """

    records: List[Dict[str, Any]]
    logs: List[str]
    killed: bool


class Server:
    """One process that forks ranks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        more = {"DDPFIX": "1"} if kind == "ddpfix" else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.harm.loops.rank"],
            env=ranks.with_release(more),
            cwd=str(ranks.ROOT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, request: Dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line in ("ready", "done", "killed"), f"the {self.kind} process has ended: {line!r}"
        return line

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Lane:
    """Processes of both kinds that take one program at a time.

    Args:
        port: of the store in which ranks meet.
    """

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder = port, folder
        self.servers = {kind: Server(kind) for kind in MODES}
        for server in self.servers.values():
            server.answer()
        self._count = 0

    def run(self, drawn: plan.Plan) -> Dict[str, Run]:
        """Run a program in plain torch, with gradients averaged by hand, and under ddpfix."""
        self._count += 1
        file = self.folder / f"loop_{drawn.seed}.py"
        file.write_text(source.text(drawn))
        for kind, server in self.servers.items():
            name = f"{drawn.seed}.{self._count}.{kind}"
            server.send(
                {
                    "file": str(file),
                    "name": name,
                    "prefix": f"{self.folder.name}/{name}",
                    "port": self.port,
                    "ranks": drawn.ranks,
                    "seed": drawn.seed,
                    "modes": MODES[kind],
                    "limit": LIMIT,
                }
            )
        answers = {kind: server.answer() for kind, server in self.servers.items()}
        return {
            kind: self._read(f"{drawn.seed}.{self._count}.{kind}", drawn.ranks, answers[kind] == "killed")
            for kind in MODES
        }

    def _read(self, name: str, size: int, killed: bool) -> Run:
        run = Run([], [], killed)
        for rank in range(size):
            stem = f"{name}.{rank}"
            record, log = self.folder / f"{stem}.pickle", self.folder / f"{stem}.log"
            run.records.append(pickle.loads(record.read_bytes()) if record.exists() else {})
            run.logs.append(log.read_text(errors="replace") if log.exists() else "")
        for file in self.folder.glob(f"{name}.*"):
            file.unlink()
        return run

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


def each(seeds: Iterable[int], size: int, jobs: int, use: Callable[[Lane, plan.Plan], None]) -> None:
    """Give the plan of each seed to a lane that is free.

    Args:
        seeds: of the plans.
        size: the world size.
        jobs: lanes at a time, each of which has two groups of ranks.
        use: is called with lane and plan, in ``jobs`` threads.
    """
    waiting: queue.Queue[int] = queue.Queue()
    for seed in seeds:
        waiting.put(seed)
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    failures: List[BaseException] = []

    def work(folder: Path) -> None:
        try:
            lane = Lane(store.port, folder)
            with contextlib.closing(lane), contextlib.suppress(queue.Empty):
                while not failures:
                    use(lane, plan.draw(waiting.get_nowait(), size))
        except BaseException as failure:
            failures.append(failure)

    with tempfile.TemporaryDirectory(prefix="ddpfix-harm-") as home:
        folders = [Path(home) / f"lane{number}" for number in range(jobs)]
        for folder in folders:
            folder.mkdir()
        threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
