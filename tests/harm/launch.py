"""Ranks of a program: started, waited for, and what they left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Dict, List, Optional, Tuple

from tests.harm.program import SCRIPTS, TORCHRUN, Program
from tests.support import ranks

# Seconds that a program may take, and that it may take under ddpfix once plain torch is done, on an idle machine.
LIMIT, AFTER = 150.0, 30.0
HANGS = "still runs"


def patience() -> float:
    """Return how many times longer things may take on this machine, which others may use as well."""
    return min(4.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@dataclass
class Run:
    """What one rank did: its exit code or :data:`HANGS`, what it printed, its record, seconds."""

    code: Any = HANGS
    out: str = ""
    err: str = ""
    record: Dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Server:
    """A fork server, which starts when it is first asked for a rank, and imports a package beside torch."""

    def __init__(self, more: Dict[str, str], package: str) -> None:
        self.more, self.package, self._lock = more, package, threading.Lock()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._jobs: Dict[str, int] = {}
        self.ended: Dict[int, Dict[str, Any]] = {}

    def start(self, job: Dict[str, Any]) -> int:
        """Fork a rank; return the number of its process."""
        with self._lock:
            if self._process is None:
                words = [sys.executable, "-m", "tests.harm.fork_server", self.package]
                environ = ranks.environment(self.more)
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, cwd=str(ranks.ROOT))
                threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        while job["job"] not in self._jobs:
            if self._process.poll() is not None:
                raise RuntimeError(f"the fork server ended with {self._process.returncode}")
            time.sleep(0.01)
        return self._jobs[job["job"]]

    def _listen(self, stream: IO[bytes]) -> None:
        for line in stream:
            words = json.loads(line)
            if "started" in words:
                self._jobs[words["job"]] = words["started"]
            else:
                self.ended[words["ended"]] = words

    def close(self) -> None:
        """End the server."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


_SERVERS: Dict[Tuple[str, str], Server] = {}


def _server(mode: str, package: str) -> Server:
    more = {"DDPFIX": "1"} if mode == "ddpfix" else {}
    return _SERVERS.setdefault((mode, package), Server(more, package))


def close() -> None:
    """End the fork servers."""
    while _SERVERS:
        _SERVERS.popitem()[1].close()


def _end(process: Any) -> None:
    """Kill the session of a rank."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process if isinstance(process, int) else process.pid, signal.SIGKILL)


class Job:
    """All ranks of one program in one mode (``plain`` or ``ddpfix``), in a folder that is made here."""

    def __init__(self, program: Program, mode: str, folder: Path) -> None:
        self.program, self.mode, self.folder, self.begun = program, mode, folder, time.monotonic()
        self.runs = [Run() for _ in range(1 if program.launcher == TORCHRUN else program.ranks)]
        self._processes: List[Any] = []
        port = ranks.free_port()
        for name in ("work", "tmp", "logs"):
            (folder / name).mkdir(parents=True)
        settings = {"DDPFIX": "1", **program.settings} if mode == "ddpfix" else {}
        for rank in range(len(self.runs)):
            environ = {"TMPDIR": str(folder / "tmp"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if program.launcher != TORCHRUN:
                numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": program.ranks}
                environ.update({name: str(number) for name, number in numbers.items()})
            self._processes.append(self._start(rank, {**environ, **settings}))

    def _log(self, rank: int, name: str) -> Path:
        return self.folder / "logs" / f"{rank}.{name}"

    def _start(self, rank: int, environ: Dict[str, str]) -> Any:
        program, record = self.program, str(self._log(rank, "json"))
        out, err = str(self._log(rank, "out")), str(self._log(rank, "err"))
        if not (program.fresh or program.launcher == TORCHRUN or program.settings):
            job: Dict[str, Any] = {"job": record, "name": program.name, "record": record, "out": out, "err": err}
            job.update(environ=environ, folder=str(self.folder / "work"))
            return _server(self.mode, program.needs).start(job)
        words = [sys.executable, "-m", "tests.harm.rank", program.name, record]
        if program.script:
            # A file for each rank: torchrun starts them with -u, so in one file their lines run into each other.
            apart = [*ranks.elastic(program.ranks), "--redirects", "1", "--log_dir", str(self.folder / "ranks")]
            before = apart if program.launcher == TORCHRUN else [sys.executable]
            words = [*before, str(SCRIPTS / program.script), *program.arguments]
        with open(out, "wb") as first, open(err, "wb") as second:
            return subprocess.Popen(
                words,
                env=ranks.environment(environ),
                stdin=subprocess.DEVNULL,
                stdout=first,
                stderr=second,
                cwd=str(self.folder / "work"),
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Whether all ranks have ended; what a rank has left running ends with it."""
        for run, process in zip(self.runs, self._processes):
            if run.code != HANGS:
                continue
            if isinstance(process, int):
                ended = _server(self.mode, self.program.needs).ended.get(process)
                if ended is not None:
                    run.code, run.seconds = ended["code"], ended["seconds"]
            elif process.poll() is not None:
                run.code, run.seconds = process.returncode, time.monotonic() - self.begun
            if run.code != HANGS:
                _end(process)
        return all(run.code != HANGS for run in self.runs)

    def result(self) -> List[Run]:
        """End what still runs, and read what all ranks have left."""
        for run, process in zip(self.runs, self._processes):
            # The number of a process that has ended may be another's by now.
            if run.code == HANGS:
                _end(process)
                if not isinstance(process, int):
                    process.wait()
        for rank, run in enumerate(self.runs):
            run.out = self._read(rank, "out")
            for file in sorted((self.folder / "ranks").rglob("stdout.log")):
                run.out += file.read_text(encoding="utf-8", errors="replace")
            run.err = self._read(rank, "err")
            run.record = json.loads(self._read(rank, "json") or "{}")
        return self.runs

    def _read(self, rank: int, name: str) -> str:
        file = self._log(rank, name)
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def left(self) -> Dict[str, List[str]]:
        """The files that are left in the working and the temporary folder, numbers in their names aside."""
        found = {}
        for name in ("work", "tmp"):
            inside = sorted(str(each.relative_to(self.folder / name)) for each in (self.folder / name).rglob("*"))
            found[name] = [_UNNAMED.sub("N", each) for each in inside if "pycache" not in each]
        return found


# What is drawn or counted in the name of a file: torch elastic's runs have a UUID.
_UNNAMED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|tmp\w+|\d+|_[a-z0-9_]{8}\b")


@dataclass
class Pair:
    """A program's ranks in plain torch and under ddpfix, and the files that each has left."""

    plain: List[Run]
    ddpfix: List[Run]
    plain_left: Dict[str, List[str]]
    ddpfix_left: Dict[str, List[str]]


def both(program: Program, second: str = "ddpfix") -> Pair:
    """Run a program in plain torch and under ddpfix at the same time, or in plain torch twice."""
    with tempfile.TemporaryDirectory(prefix="harm-") as folder:
        plain = Job(program, "plain", Path(folder) / "plain")
        other = Job(program, second, Path(folder) / "other")
        limit = time.monotonic() + LIMIT * patience()
        while time.monotonic() < limit and not (plain.is_over() & other.is_over()):
            if plain.is_over():
                limit = min(limit, time.monotonic() + AFTER * patience())
                while time.monotonic() < limit and not other.is_over():
                    time.sleep(0.05)
            time.sleep(0.05)
        return Pair(plain.result(), other.result(), plain.left(), other.left())
