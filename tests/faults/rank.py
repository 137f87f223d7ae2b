"""One rank of a run: trains, keeps what it has got after each step, and is struck by the fault."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Iterator

import torch
from torch import distributed
from torch.utils.data import DataLoader

from tests.faults import inject, programs
from tests.faults.plan import STEPS
from tests.support import serving

ROWS, SAID, CHECKPOINT = "rank-{}.rows", "rank-{}.log", "checkpoint.pt"


def main(plan: Dict[str, Any], folder: str) -> str:
    """What torch elastic starts on each rank: behaves as a script that is the whole program of its process."""
    try:
        _prepare(plan, Path(folder))
        if plan["ddpfix"]:
            _as_outermost(sys._getframe())
        train(plan, Path(folder), inject.Fault(plan, Path(folder)))
    except BaseException:
        # As the interpreter does with an error that nobody handles: torch elastic's own wrapper for functions is not
        # in a script, and would write the error file in place of ddpfix.
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.pythonapi.Py_Exit(1)
    return "done"


def _as_outermost(frame: FrameType) -> None:
    """Have ddpfix take this frame for the outermost one, as it is in a script: below it are those of the agent.

    That an error has passed the outermost frame is what proves that it has ended the program.
    """
    from ddpfix.monitor.watch import MainThread

    def begin(self: MainThread) -> None:
        self._outermost = frame

    MainThread.__init__ = begin  # type: ignore[method-assign]


def _prepare(plan: Dict[str, Any], folder: Path) -> None:
    """The place, the output, the generators, and ddpfix as a script's first line has it."""
    os.chdir(str(folder))
    # The agent's own reactions, which a fork has inherited.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    screen = os.open(SAID.format(os.environ["RANK"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(screen, 1)
    os.dup2(screen, 2)
    serving.listen()
    random.seed(plan["seed"])
    torch.set_num_threads(1)
    if plan["ddpfix"]:
        os.environ.update(plan["environ"], DDPFIX="1")
        import ddpfix.auto  # noqa: F401


def train(plan: Dict[str, Any], folder: Path, fault: inject.Fault) -> None:
    """The program."""
    program, seed, ours = plan["program"], plan["seed"], fault.rank
    fault.before_group()
    distributed.init_process_group("gloo")
    fault.before_model()
    # Without ddpfix the flag is what such a model needs.
    flag = {} if plan["ddpfix"] or program == "plain" else {"find_unused_parameters": True}
    model = fault.wrapper()(programs.model(program, seed), **flag)
    fault.model(model)
    many = programs.accumulated(program)
    data = programs.Numbers(ours, STEPS * many, seed, fault.spoil)
    batches = iter(DataLoader(data, batch_size=None, num_workers=fault.workers()))
    stepper = programs.optimizer(model.parameters())
    # No more system call a step than this one, so that what a rank did before it was killed is known.
    with (folder / ROWS.format(ours)).open("wb", buffering=0) as rows:
        for step in range(STEPS):
            _step(plan, step, model, batches, fault)
            stepper.step()
            rows.write(programs.flat(model.module).numpy().tobytes())
            stepper.zero_grad()
            fault.at("update", step)
            if ours == 0 and step % 2:
                save(model.module, folder / fault.disk())
    distributed.destroy_process_group()


def _step(plan: Dict[str, Any], step: int, model: Any, batches: Iterator[Any], fault: inject.Fault) -> None:
    """The gradients of one step."""
    many = programs.accumulated(plan["program"])
    for part in range(many):
        index = step * many + part
        batch = next(batches)
        fault.at("start", step)
        with model.no_sync() if part < many - 1 else contextlib.nullcontext():
            fault.at("forward", step)
            loss = model(batch, programs.choice(plan["program"], plan["seed"], fault.rank, index))
            if fault.is_due("backward", step):
                loss.register_hook(fault.in_backward)
            loss.backward()


def save(trained: Any, folder: Path) -> None:
    """A checkpoint that is there as a whole or not at all."""
    part = folder / (CHECKPOINT + ".part")
    torch.save(trained.state_dict(), str(part))
    os.replace(str(part), str(folder / CHECKPOINT))
