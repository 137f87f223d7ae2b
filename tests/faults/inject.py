"""The faults, as they strike one rank."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import distributed
from torch.nn import parallel
from torch.utils.data import get_worker_info

# Words that a message names the cause with.
INJECTED = "injected fault"
DISK, GONE, PORT = "disk", "store.gone", "store.port"
DAY = 86400.0
_CLOCKS = {"back a day": -DAY, "on a day": DAY}
# What a rank has beyond what it uses already, in bytes.
_ROOM = {"tight": 64 << 20, "used up": 256 << 20}


class InjectedError(RuntimeError):
    """The fault of those kinds that raise."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{INJECTED} in {where}")


class Fault:
    """The fault of a plan on this rank; every method does nothing on the others.

    Args:
        plan: see :class:`tests.faults.plan.Plan`.
        folder: of the run.
    """

    def __init__(self, plan: Dict[str, Any], folder: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.kind, self.how, self.step, self.folder = plan["kind"], plan["how"], plan["step"], folder
        self.many = 2 if plan["program"] == "accumulation" else 1
        self.ours, self.plan, self._done = self.rank == plan["rank"], plan, False
        self._ballast: List[Any] = []

    # By the program, at these places.

    def before_group(self) -> None:
        if self.kind in ("slow store", "store gone"):
            self._through_proxy()
        if self.kind == "full disk: trace" and self.plan["ddpfix"]:
            self._fill("at start")
        if self.kind == "kill" and self.how == "any" and self.ours:
            # From outside, at no place in particular.
            delay = random.Random(self.plan["seed"]).uniform(0.0, 0.5)
            subprocess.Popen(["sh", "-c", f"sleep {delay:.3f}; kill -KILL {os.getpid()}"])

    def before_model(self) -> None:
        if self.kind == "late patcher" and self.how != "in the run":
            _patch_late(self.how)
        if self.kind == "store gone" and self.how == "before the model":
            # Making the group needs it.
            distributed.barrier()
            self._lose_store()

    def wrapper(self) -> Any:
        """The class that wraps the model."""
        found: Any = parallel.DistributedDataParallel
        return _subclass(found) if self.kind == "late patcher" and self.how == "subclass" else found

    def model(self, model: Any) -> None:
        """The model is wrapped."""
        if self.kind == "hook" and self.ours:
            self._hook(model)
        if self.kind == "hook" and self.how == "communication" and not self.ours:
            model.register_comm_hook(None, _averages)

    def workers(self) -> int:
        """How many workers the loader has."""
        return 1 if self.kind == "worker" or (self.kind == "loader" and self.how == "in a worker") else 0

    def spoil(self, index: int) -> None:
        """A batch is read, in a worker perhaps."""
        if not self.ours or index != self.step * self.many:
            return
        if self.kind == "loader":
            raise InjectedError("the loader")
        if self.kind == "worker" and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    def disk(self) -> str:
        """Where checkpoints go."""
        return DISK if self.kind == "full disk: checkpoint" else "."

    def is_due(self, place: str, step: int) -> bool:
        """Whether the fault strikes this rank now, once."""
        kinds = {"kill": self.how, "stop": self.how, "forward": "forward", "backward": "backward"}
        kinds.update({"memory": "start", "clock": "start", "full disk: error file": "forward", "undo": "start"})
        kinds.update({"store gone": "start", "full disk: trace": "start", "full disk: checkpoint": "start"})
        kinds["late patcher"] = "start"
        if self._done or step < self.step or kinds.get(self.kind) != place:
            return False
        everybody = self.how in ("all ranks", "in the run") or self.kind == "full disk: checkpoint"
        return self.ours or everybody

    def at(self, place: str, step: int) -> None:
        """The program is at a place."""
        self._more(step)
        if self.is_due(place, step):
            self._done = True
            self.strike(place)

    def in_backward(self, gradient: Any) -> Any:
        """A hook within the backward."""
        self._done = True
        self.strike("backward")
        return gradient

    def strike(self, place: str) -> None:
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stop":
            subprocess.Popen(["sh", "-c", f"sleep 2.5; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind in ("forward", "backward", "full disk: error file"):
            if self.kind == "full disk: error file":
                fill(self.folder / DISK)
            raise InjectedError(place)
        elif self.kind == "memory":
            self._limit_memory()
        elif self.kind == "clock":
            self._move_clock()
        elif self.kind == "undo":
            self._undo()
        elif self.kind == "store gone" and self.how == "in the run":
            self._lose_store()
        elif self.kind == "late patcher" and self.how == "in the run":
            _patch_late("wraps")
        elif self.kind == "full disk: trace" and self.plan["ddpfix"]:
            self._fill("in the run")
        elif self.kind == "full disk: checkpoint":
            fill(self.folder / DISK)

    # What strikes.

    def _through_proxy(self) -> None:
        """Reach the store through the proxy: rank 0 tells it where the store is."""
        port = self.folder / PORT
        if self.rank == 0:
            port.with_suffix(".part").write_text(os.environ["MASTER_PORT"])
            port.with_suffix(".part").rename(port)
        os.environ["MASTER_PORT"] = os.environ["FAULTS_PROXY"]

    def _lose_store(self) -> None:
        (self.folder / GONE).touch()
        # Time for the proxy to close what is open.
        time.sleep(0.3)

    def _fill(self, when: str) -> None:
        if self.how == when:
            fill(self.folder / "trace")

    def _move_clock(self) -> None:
        real = time.time
        begun = real()

        def shifted() -> float:
            now = real()
            if self.how == "to 1970":
                return now - begun
            if self.how == "back and forth":
                return now + (DAY if int(now * 20) % 2 else -DAY)
            return now + _CLOCKS[self.how]

        time.time = shifted

    def _undo(self) -> None:
        if self.plan["ddpfix"]:
            import ddpfix

            left = ddpfix.deactivate()
            print(f"undone, {len(left)} left")

    def _limit_memory(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _ROOM[self.how]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def _more(self, step: int) -> None:
        """A program whose need grows."""
        if self.kind == "memory" and self.how == "used up" and self._done:
            self._ballast.append(torch.ones(32 << 20, dtype=torch.uint8))

    def _hook(self, model: Any) -> None:
        """Put a hook in that raises after some calls."""
        calls = itertools.count(1)
        words, result = _HOOKS[self.how]

        # torch reads the names of the arguments.
        @functools.wraps(result)
        def hook(*args: Any) -> Any:
            if next(calls) > self.step:
                raise InjectedError(words)
            return result(*args)

        # torch compares annotations, which are strings here.
        hook.__annotations__.clear()
        if self.how == "communication":
            model.register_comm_hook(None, hook)
        elif self.how == "parameter":
            model.module.head.weight.register_hook(hook)
        else:
            model.module.head.register_forward_hook(hook)


def fill(folder: Path) -> None:
    """Fill the disk on which a folder is, to the last byte."""
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass


def _averages(_: Any, bucket: Any) -> Any:
    size = distributed.get_world_size()
    future = distributed.all_reduce(bucket.buffer().div_(size), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


_averages.__annotations__.clear()
# A hook by its kind: how an error names it, and what it returns.
_HOOKS: Dict[str, Tuple[str, Callable[..., Any]]] = {
    "communication": ("a communication hook", _averages),
    "parameter": ("a hook of a parameter", lambda gradient: gradient),
    "module": ("a hook of a module", lambda *_: None),
}


def _patch_late(how: str) -> None:
    """What another library does with DDP after ddpfix has come."""
    owner = parallel.DistributedDataParallel
    for name in ("__init__", "forward"):
        setattr(owner, name, _calling(getattr(owner, name), how == "wraps"))


def _calling(original: Any, marked: bool) -> Any:
    def other(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    return functools.wraps(original)(other) if marked else other


def _subclass(owner: Any) -> Any:
    class Other(owner):
        def forward(self, *inputs: Any, **named: Any) -> Any:
            return super().forward(*inputs, **named)

    return Other
