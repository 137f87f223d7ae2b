"""Two real ranks under torch elastic: started, watched, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from ddpfix.cli import run

# In a folder of its own, because the folder of a script is the first place where its imports are looked for.
SCRIPT = Path(__file__).with_name("script") / "train.py"
RANKS = 2
STEP_SECONDS = 30
TOTAL_SECONDS = 240
GRACE_SECONDS = 10

# Settings of the user's own jobs (an accelerate config, an outer torchrun) are not for these ranks.
_OUTER_VARIABLES = ("ACCELERATE_", "PET_", "TORCHELASTIC_", "FSDP_")


class Job:
    """One training of the demo, unpatched or under ddpfix: its record, and what its ranks printed."""

    def __init__(self, patched: bool, steps: int, folder: Path) -> None:
        self.patched, self.steps = patched, steps
        self.folder = folder / ("ddpfix" if patched else "unpatched")
        self.code: Optional[int] = None
        self.seconds = 0.0

    def command(self) -> List[str]:
        """torchrun with a script that knows nothing of ddpfix; under ddpfix, ``-m ddpfix run`` precedes it."""
        front = ["-m", "ddpfix", "run"] if self.patched else []
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]
        # Each rank's output goes to a file of its own: the two would be mixed up in one.
        files = ["--monitor_interval", "0.2", "--redirects", "3", "--log_dir", str(self.folder / "logs")]
        words = ["--steps", str(self.steps), "--folder", str(self.folder), "--limit", str(STEP_SECONDS)]
        return [sys.executable, *front, *launcher, *files, str(SCRIPT), *words]

    def environment(self) -> Dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OUTER_VARIABLES)}
        environ.update(DDPFIX="1" if self.patched else "0", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        # Torch and its launcher leave folders in the temporary directory; these go with ours.
        environ.update(TMPDIR=str(self.folder))
        environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", USE_TF="0", USE_FLAX="0", WANDB_DISABLED="true")
        if "lo" in _interfaces():
            # Otherwise gloo resolves the host's name, which fails on many laptops and in many containers.
            environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if not run.installed():
            root = str(Path(__file__).parents[3])
            environ["PYTHONPATH"] = os.pathsep.join(p for p in (environ.get("PYTHONPATH", ""), root) if p)
        return environ

    def train(self, show_step: Callable[[int], None]) -> None:
        """Run to the end. ``show_step`` is called with the running step several times a second."""
        self.folder.mkdir()
        began = time.monotonic()
        with (self.folder / "launcher.log").open("wb") as log:
            # A session of its own, so that Ctrl-C reaches the launcher through us alone, once, and in order.
            process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() - began < TOTAL_SECONDS:
                    show_step(self.running_step())
                    time.sleep(0.1)
            finally:
                self._stop(process)
        self.code, self.seconds = process.returncode, time.monotonic() - began

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End the launcher, which ends its ranks; a process that does not end in time is killed."""
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        if process.returncode < 0:
            # Ranks are in sessions of their own, so a launcher that was killed leaves them running.
            for line in self.lines("pid"):
                _kill(line["pid"])

    def lines(self, key: str) -> List[Dict[str, Any]]:
        """Return the lines of all ranks' records that have this key."""
        lines = []
        for file in sorted(self.folder.glob("rank-*.jsonl")):
            whole, _, _ = file.read_text().rpartition("\n")
            lines += [json.loads(line) for line in whole.splitlines() if f'"{key}"' in line]
        return lines

    def running_step(self) -> int:
        return max((line["step"] for line in self.lines("step")), default=0)

    def output(self, rank: int) -> str:
        """Return a rank's output on stderr."""
        files = self.folder.glob(f"logs/**/{rank}/stderr.log")
        return "\n".join(file.read_text(errors="replace") for file in sorted(files))

    def everything(self) -> str:
        """Return all that was captured, for the case in which something is not as expected."""
        parts = [("launcher", (self.folder / "launcher.log").read_text(errors="replace"))]
        parts += [(f"rank {rank}", self.output(rank)) for rank in range(RANKS)]
        return "\n".join(f"----- {name}\n{_tail(text)}" for name, text in parts if text.strip())

    def error(self, rank: int) -> str:
        """Return the last exception of a rank with its message, or an empty string."""
        lines = [_without_prefix(line, rank) for line in self.output(rank).splitlines()]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        if not starts:
            return ""
        # The traceback's own lines are indented; the message is what follows them, and may have several lines.
        rest = iter(lines[starts[-1] + 1 :])
        first = next((line for line in rest if line and not line.startswith(" ")), "")
        return "\n".join([first, *rest]).strip()


def _without_prefix(line: str, rank: int) -> str:
    """Recent torch begins each line of a rank's traceback with its number."""
    prefix = f"[rank{rank}]:"
    return line[len(prefix) :].replace(" ", "", 1) if line.startswith(prefix) else line


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-40:])


def _interfaces() -> List[str]:
    try:
        return [name for _, name in socket.if_nameindex()]
    except (AttributeError, OSError):
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    except OSError:
        return


@contextmanager
def ending_in_order() -> Iterator[None]:
    """While ranks run, SIGTERM and SIGHUP unwind this process instead of ending it on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
