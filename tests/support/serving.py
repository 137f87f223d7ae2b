"""Ranks that have imported a toolkit once and run scenarios on request: the side of the ranks.

One process imports, and forks the ranks: an import takes seconds, and there are many ranks. They have the environment
that torch elastic gives to its own. The generators of Python and numpy, which are equal after a fork, are seeded
anew; the order of sets of strings stays equal. Tests of launchers start interpreters.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import inspect
import json
import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, List

from tests.support.ranks import free_port

# Of this process; none before it has become a rank.
RANK = -1
# The tests that started this process.
_STARTER = os.getppid()
_CHILDREN: List[int] = []


Run = Callable[[Dict[str, Any], Path], Any]
# What is imported when a process group is made, or a model is wrapped.
_IN_A_GROUP = (
    "monitor.exit.process_end",
    "monitor.hang",
    "patches.torch.unused.finalizer",
    "patches.torch.diagnosis.evidence",
)


def serve(home: Path, run: Run) -> None:
    """Serve the requests that appear in ``home`` on ``WORLD_SIZE`` ranks, until a file ``stop`` does.

    ``run(scenario, folder)`` runs one scenario in a forked child, whose output goes to the scenario's log, and fills
    ``scenario["found"]``, which is recorded with the error, if one was raised. A scenario for fewer ranks (``size``)
    leaves the last ones out.
    """
    if RANK < 0:
        if "torch" in sys.modules:
            preload()
        fork_ranks(home)
    _serve(home, run)


def meet(size: int, limit: Any) -> None:
    """Make the process group. Ranks are forked in turn, and are waited for longer than its collectives may take."""
    from torch import distributed

    where, patience = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timedelta(seconds=60)
    store = distributed.TCPStore(*where, size, RANK == 0, patience)
    store.set_timeout(limit)
    distributed.init_process_group("gloo", store=store, rank=RANK, world_size=size, timeout=limit)


def dynamo() -> None:
    """Import what DDP imports when it is first built, two seconds for each child."""
    import_module("torch._dynamo")


def without_devices() -> None:
    """DDP gets no device: toolkits hand it the one that they were told as a GPU."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        original(self, module, **kwargs)

    # fastNLP looks at the names that it takes.
    vars(init)["__signature__"] = inspect.signature(original)
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def preload() -> None:
    """Import what an activation imports, and switch nothing on: each scenario would compile it anew from a checkout."""
    from ddpfix import engine  # noqa: F401
    from ddpfix.matrix import loader

    patches = loader.load().patches.values()
    of_all = [each.code for each in patches if each.toolkit == "torch" and each.default and each.setting != "trace"]
    for code in of_all:
        import_module("ddpfix.patches." + code.partition(":")[0])
    for name in _IN_A_GROUP:
        import_module("ddpfix." + name)


def fork_ranks(home: Path) -> None:
    """Fork ``WORLD_SIZE`` ranks; returns in them, while this process waits for them and ends with them.

    Called first by scripts whose toolkit looks at the rank when it is imported; :func:`serve` calls it otherwise.
    """
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGALRM, _orphaned)
    for rank in range(int(os.environ["WORLD_SIZE"])):
        child = os.fork()
        if child == 0:
            _CHILDREN.clear()
            _become(rank, home)
            return
        _CHILDREN.append(child)
    signal.setitimer(signal.ITIMER_REAL, 5, 5)
    while _CHILDREN:
        child, status = os.wait()
        # Others are processes that an imported package has started (deepspeed).
        if child in _CHILDREN:
            _CHILDREN.remove(child)
            if status != 0:
                _ended()
    os._exit(0)


def _orphaned(*_: Any) -> None:
    """End this process if the tests were killed, so that nobody can stop it."""
    if os.getppid() != _STARTER:
        _ended()


def _become(rank: int, home: Path) -> None:
    """Set the variables that torch elastic gives to a rank, and seed the generators anew."""
    global RANK
    RANK = rank
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    # Each scenario gets a port of its own before it runs.
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", GROUP_RANK="0", GROUP_WORLD_SIZE="1", ROLE_RANK=str(rank)
    )
    os.environ.update(ROLE_WORLD_SIZE=os.environ["WORLD_SIZE"], ROLE_NAME="default")
    os.environ.update(TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0", TORCHELASTIC_RUN_ID="pool")
    os.environ.update(TORCHELASTIC_ERROR_FILE=str(home / f"error.{rank}.json"))
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _serve(home: Path, run: Run) -> None:
    number, parent = 0, os.getppid()
    # The process that started this one may have been killed, and then nobody can stop it.
    while not (home / "stop").exists() and os.getppid() == parent:
        request = home / f"request.{number}"
        if request.exists():
            _serve_one(json.loads(request.read_text()), run)
            (home / f"done.{number}.{RANK}").touch()
            number += 1
        time.sleep(0.02)


def listen() -> None:
    """Print the stacks of all threads on SIGUSR1, which a rank gets when its time is up."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def _ended(*_: Any) -> None:
    # Of ranks that wait, each has a child of its own to end.
    with contextlib.suppress(ProcessLookupError):
        for child in _CHILDREN:
            os.kill(child, signal.SIGTERM if RANK < 0 else signal.SIGKILL)
    os._exit(1)


def _serve_one(request: Dict[str, Any], run: Run) -> None:
    """Run the scenarios of one request, one after the other."""
    folder = Path(request["folder"])
    os.chdir(folder)
    for number, scenario in enumerate(request["scenarios"]):
        port = _agreed_port(folder, number)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _in_child(scenario, folder, port, run)
        _CHILDREN[:] = [child]
        _wait(child, scenario.get("timeout", 60))
        _CHILDREN.clear()


def _in_child(scenario: Dict[str, Any], folder: Path, port: str, run: Run) -> None:
    """Run one scenario in this (forked) process; never returns."""
    screen = os.open(folder / f"{scenario['name']}.{RANK}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(screen, 1)
    os.dup2(screen, 2)
    listen()
    found: Dict[str, Any] = {"error": None}
    scenario["found"] = found
    try:
        size = int(scenario.get("size", os.environ["WORLD_SIZE"]))
        os.environ.update(scenario.get("environ") or {}, MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
        os.environ.update(WORLD_SIZE=str(size))
        if size > RANK:
            run(scenario, folder)
        else:
            found["left_out"] = True
    except BaseException as error:
        traceback.print_exc()
        if not isinstance(error, SystemExit) or error.code:
            found["error"] = f"{type(error).__name__}: {error}"
    try:
        sys.stdout.flush()
        # As a whole or not at all: a child whose time is up may be killed in here.
        record = folder / f"{scenario['name']}.{RANK}.json"
        record.with_suffix(".part").write_text(json.dumps(found))
        record.with_suffix(".part").rename(record)
        _stay(scenario, folder, scenario.get("stays" if found["error"] else "lingers", 0.0))
    finally:
        os._exit(0)


def _stay(scenario: Dict[str, Any], folder: Path, seconds: float) -> None:
    """Wait for the records of all ranks, for as long as the scenario says.

    A rank that is slower would end with the lost connection to this one: not with the error that it has as well
    (``stays``), or with an error where it has none (``lingers``).
    """
    records = [folder / f"{scenario['name']}.{rank}.json" for rank in range(scenario.get("size", 0))]
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(record.exists() for record in records):
        time.sleep(0.02)


def _agreed_port(folder: Path, number: int) -> str:
    """Wait until all ranks have reached this scenario, and get the port of its process group from rank 0."""
    (folder / f"at.{number}.{RANK}").touch()
    port_file = folder / f"port.{number}"
    if RANK == 0:
        while not all((folder / f"at.{number}.{rank}").exists() for rank in range(int(os.environ["WORLD_SIZE"]))):
            time.sleep(0.01)
        port = free_port()
        (folder / f"port.{number}.new").write_text(str(port))
        (folder / f"port.{number}.new").rename(port_file)
    while not port_file.exists():
        time.sleep(0.01)
    return port_file.read_text()


def _wait(child: int, seconds: float) -> None:
    """Wait for the child; one that hangs is killed, and leaves no record."""
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            # It prints where it waits; then it is killed.
            os.kill(child, signal.SIGUSR1)
            time.sleep(0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
