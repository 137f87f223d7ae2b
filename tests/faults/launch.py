"""Runs under torch elastic's own agent, which forks the ranks: importing torch takes longer than a run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from tests.faults import judge, proxy
from tests.faults import rank as program
from tests.faults.inject import DISK
from tests.faults.plan import Plan
from tests.support import serving

# Seconds that a run may take. Those of a slow store are many messages, each of them late.
LIMIT = 45.0
_AGENT, _CODE = "agent.log", "agent.code"
_DISK = "size=256k"


class Run:
    """A run in a process of its own, with a session of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder, self.begun = plan, folder, time.monotonic()
        folder.mkdir(parents=True)
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            _become_agent(plan, folder)

    def is_over(self) -> bool:
        """Whether it has ended; past the limit it is ended."""
        if os.waitpid(self.process, os.WNOHANG) != (0, 0):
            self._end()
            return True
        if time.monotonic() - self.begun > LIMIT:
            # Those that listen print their stacks.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGUSR1)
            time.sleep(0.5)
            self._end()
            os.waitpid(self.process, 0)
            return True
        return False

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)

    def outcome(self) -> judge.Outcome:
        """What the rules say of it; removes its disks."""
        code = self.folder / _CODE
        ended = int(code.read_text()) if code.exists() else None
        try:
            return judge.outcome(self.plan, self.folder, ended, round(time.monotonic() - self.begun, 1))
        finally:
            for name in ("trace", DISK):
                if os.path.ismount(str(self.folder / name)):
                    subprocess.run(["umount", "-l", str(self.folder / name)], check=False)


def preload() -> None:
    """Import what the ranks need, once, and switch nothing on."""
    # What DDP's constructor imports, for seconds.
    import torch._dynamo
    import torch.distributed.launcher.api
    import torch.utils.checkpoint
    import torch.utils.data  # noqa: F401

    serving.preload()


def _become_agent(plan: Plan, folder: Path) -> None:
    """In a forked process: start the ranks and wait for them; never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        screen = os.open(str(folder / _AGENT), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(screen, 1)
        os.dup2(screen, 2)
        serving.listen()
        _surroundings(plan, folder)
        code = _launch(plan, folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / _CODE).write_text(str(code))
        os._exit(0)


def _surroundings(plan: Plan, folder: Path) -> None:
    """The environment, the small disks, the proxy."""
    for name in [name for name in os.environ if name.startswith("DDPFIX")]:
        del os.environ[name]
    os.environ.update(OMP_NUM_THREADS="1", TMPDIR=str(folder / "tmp"), PYTHONFAULTHANDLER="1")
    (folder / "tmp").mkdir()
    tempfile.tempdir = None
    (folder / DISK).mkdir()
    if plan.kind == "full disk: trace":
        (folder / "trace").mkdir()
        _mount(folder / "trace")
    elif plan.kind.startswith("full disk"):
        _mount(folder / DISK)
    if plan.kind in ("slow store", "store gone"):
        delay = float(plan.how) if plan.kind == "slow store" else 0.0
        os.environ["FAULTS_PROXY"] = str(proxy.start(folder, delay)[0])


def _mount(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "none", str(folder)], check=True)


def can_mount() -> bool:
    """Whether small disks can be made here."""
    if shutil.which("mount") is None or os.getuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "none", folder], stderr=subprocess.DEVNULL)
        if made.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return made.returncode == 0


def _launch(plan: Plan, folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api

    config = api.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=plan.size,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        **_logs(folder / (DISK if plan.kind == "full disk: error file" else "logs")),
    )
    try:
        api.elastic_launch(config, program.main)(plan.dump(), str(folder))
    except ChildFailedError as error:
        print(error)
        return 1
    return 0


def _logs(folder: Path) -> Dict[str, Any]:
    """Where the error files go, by the names of this release."""
    with contextlib.suppress(ImportError):
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

        folder.mkdir(exist_ok=True)
        return {"logs_specs": DefaultLogsSpecs(log_dir=str(folder))}
    return {"log_dir": str(folder)}


def outcomes(plans: Sequence[Plan], folder: Path, jobs: int = 2) -> Iterator[judge.Outcome]:
    """Run plans, and where it decides the same without ddpfix; the folders of good ones are removed.

    Args:
        plans: what to run.
        folder: where.
        jobs: how many at a time.
    """
    waiting: List[Plan] = list(plans)
    running: List[Run] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            plan = waiting.pop(0)
            running.append(Run(plan, folder / f"{plan.seed}-{plan.kind.replace(' ', '-').replace(':', '')}"))
        time.sleep(0.02)
        for run in [run for run in running if run.is_over()]:
            running.remove(run)
            found = run.outcome()
            found = _compared(found, run) if judge.needs_plain(found) else found
            yield found
            if not found.faults:
                shutil.rmtree(str(run.folder), ignore_errors=True)


def _compared(found: judge.Outcome, run: Run) -> judge.Outcome:
    """Judged once more, beside the same run without ddpfix."""
    plain = Run(replace(run.plan, ddpfix=False), run.folder / "plain")
    while not plain.is_over():
        time.sleep(0.02)
    return judge.beside(found, plain.outcome())
