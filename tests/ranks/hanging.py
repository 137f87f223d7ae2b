"""One of three ranks of a job that hangs in the way that is asked for, or that is only slow."""

from __future__ import annotations

import contextlib
import os
import pdb
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.support import serving

# Of all jobs: the step before which it happens.
STEP = 3
# Longer than any limit of these jobs, and shorter than torch's.
LONG = 60.0
# Of waits that a program has limited, as CosyVoice does.
GIVES_UP = timedelta(seconds=5)


class Numbers(Dataset):
    """Data of which one cannot be read at once.

    Args:
        size: how many there are.
        bad: the number of the one.
        read: what reading it does.
    """

    def __init__(self, size: int, bad: int = -1, read: Callable[[], Any] = time.time) -> None:
        self.size, self.bad, self.read = size, bad, read

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            self.read()
        return torch.ones(2)


class Job:
    """A tiny training."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.model = DistributedDataParallel(torch.nn.Linear(2, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: Optional[torch.Tensor] = None) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2) if batch is None else batch).sum().backward()
        self.optimizer.step()

    def train(self, happens: Callable[[], Any], rank: int, steps: int = 6) -> None:
        """Train; something happens on one rank before a step."""
        for number in range(1, steps + 1):
            if number == STEP and rank in (self.rank, ALL):
                happens()
            self.step()


ALL = -1


def stop() -> None:
    """Stop this process; a child ends it when all has been said."""
    own = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep 14; kill -KILL {own}"], stdout=subprocess.DEVNULL)
    os.kill(own, signal.SIGSTOP)


def holder() -> None:
    """A child that keeps the connections of this rank open, as loader workers do."""
    if not os.fork():
        time.sleep(14)
        os._exit(0)


def killed() -> None:
    holder()
    os.kill(os.getpid(), signal.SIGKILL)


def stop_worker() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def uneven(job: Job) -> None:
    for batch in DataLoader(Numbers(4 if job.rank == 1 else 5)):
        job.step(batch)
    distributed.barrier()


def reads(read: Callable[[], Any], workers: int = 0) -> Callable[[Job], None]:
    """A job in which one batch of rank 1 is read in another way."""

    def train(job: Job) -> None:
        for batch in DataLoader(Numbers(5, 2 if job.rank == 1 else -1, read), num_workers=workers):
            job.step(batch)

    return train


def evaluate(job: Job, seconds: float) -> None:
    job.model.eval()
    with torch.no_grad():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job.model.module(torch.ones(200, 2))
            torch.ones(200, 200).mm(torch.ones(200, 200))
    job.model.train()


def debugged(job: Job) -> None:
    def look() -> None:
        reading, _ = os.pipe()
        sys.stdin = os.fdopen(reading)
        pdb.Pdb(stdin=sys.stdin, stdout=sys.stderr).set_trace()
        return

    job.train(look, 1)


class SlowFile:
    """A file on a slow file system."""

    def write(self, data: bytes) -> int:
        time.sleep(0.4)
        return len(data)

    def flush(self) -> None:
        pass


def save(job: Job) -> None:
    torch.save(job.model.state_dict(), SlowFile())  # type: ignore[arg-type]


def saving(job: Job) -> None:
    job.train(lambda: save(job), 0)
    # The thread looks once more.
    time.sleep(1)


def accumulating(job: Job) -> None:
    """One rank trains on without its collectives."""

    def train_on() -> None:
        with job.model.no_sync():
            for _ in range(int(LONG * 10)):
                job.model(torch.ones(1, 2)).sum().backward()
                time.sleep(0.1)

    job.train(train_on, 1)


def forward(job: Job) -> torch.Tensor:
    job.optimizer.zero_grad()
    loss: torch.Tensor = job.model(torch.ones(1, 2)).sum()
    return loss


def unreached(job: Job) -> None:
    """The loss of one rank does not depend on the model in a step: it has no target there (Lightning issue 12190)."""
    for number in range(1, 7):
        loss = forward(job)
        if job.rank == 1 and number == STEP:
            loss = torch.zeros((), requires_grad=True)
        loss.backward()
        job.optimizer.step()
    distributed.barrier()


def save_all() -> None:
    distributed.barrier()


def shifted(job: Job) -> None:
    """The first rank alone saves; its barrier meets the next one of the others."""
    job.train(lambda: None, ALL)
    if job.rank == 0:
        save_all()
    distributed.barrier()
    distributed.all_reduce(torch.ones(1))


def undone(job: Job) -> None:
    """The threads end with ddpfix, and torch is as it was. The program sees none of them."""
    import ddpfix
    from ddpfix import log

    assert log.NOTED.unlisted and [thread for thread in threading.enumerate() if "ddpfix" in str(thread)] == []
    ddpfix.deactivate()
    assert not log.NOTED.unlisted
    assert distributed.init_process_group.__module__.startswith("torch.")
    assert "ddpfix" not in distributed.init_process_group.__code__.co_filename


# Jobs that are slow and hang in no way: on all ranks, or within the limit.


def saves(job: Job) -> None:
    job.train(lambda: time.sleep(6.5), ALL)
    save(job)
    job.step()


def gives_up(wait: Callable[[Any], Any]) -> Callable[[Job], None]:
    """A job in which rank 1 has no batch left for a while, which the others learn from a wait that gives up."""

    def train(job: Job) -> None:
        group = distributed.new_group(backend="gloo", timeout=GIVES_UP)
        job.step()
        if job.rank == 1:
            time.sleep(6.5)
        else:
            with contextlib.suppress(RuntimeError):
                wait(group)
        job.step()

    return train


def ask_the_store(group: Any) -> None:
    """For a key that rank 1 does not write in time."""
    distributed.distributed_c10d._get_default_store().wait(["rank-1-has-a-batch"], GIVES_UP)


def computes(job: Job) -> None:
    """A backward that takes long on all ranks."""

    def hook(grad: torch.Tensor) -> None:
        end = time.monotonic() + 6.5
        while time.monotonic() < end:
            torch.ones(50, 50).mm(torch.ones(50, 50))

    for parameter in job.model.parameters():
        parameter.register_hook(hook)
        break
    job.train(time.time, ALL, 2)


JOBS: Dict[str, Callable[[Job], None]] = {
    "shifted": shifted,
    "stuck_worker": reads(stop_worker, workers=1),
    "slow_loader": reads(lambda: time.sleep(2.5)),
    "sizes": lambda job: job.train(lambda: distributed.all_reduce(torch.ones(1 if job.rank else 2)), ALL),
    "evaluation": lambda job: job.train(lambda: evaluate(job, LONG), 0),
    "evaluates": lambda job: job.train(lambda: evaluate(job, 6.5), ALL),
    "stopped": lambda job: job.train(stop, 1),
    "killed_rank": lambda job: job.train(killed, 2),
    # One rank waits for what another one never sends.
    "received": lambda job: job.train(lambda: distributed.recv(torch.ones(1), 1), 0),
    "waits_for_a_while": gives_up(lambda group: distributed.monitored_barrier(group, timeout=GIVES_UP)),
    # Only the group whose call gives up is broken then.
    "group_gives_up": gives_up(lambda group: distributed.all_reduce(torch.ones(1), group=group)),
    "asks_the_store": gives_up(ask_the_store),
    **{
        each.__name__: each
        for each in (*(uneven, debugged, saving, accumulating, unreached), *(undone, saves, computes))
    },
}


def run(scenario: Dict[str, Any], folder: Path) -> None:
    """One rank of one job."""
    tempfile.tempdir = str(folder)
    limit = scenario["limit"]
    if scenario["active"]:
        import ddpfix

        ddpfix.activate()
    distributed.init_process_group("gloo", timeout=timedelta(seconds=limit))
    JOBS[scenario["job"]](Job())
    scenario["found"]["done"] = True


def main() -> None:
    # What DDP and ddpfix import when they are first used takes seconds: once for all, before the fork.
    import torch.distributed.fsdp

    assert torch.distributed.fsdp
    serving.dynamo()
    serving.serve(Path(sys.argv[1]), run)


if __name__ == "__main__":
    main()
