"""One rank of a job in which rank 1 fails in step 7, in the way that is asked for; or in which all is well."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

# Longer than a rank needs to learn how another one has ended.
ALONE = 6.0


class Broken(Dataset):
    """Data that cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        raise IndexError(f"no utterance {index}")


def read() -> None:
    """Read the data in a process of its own."""
    for _ in DataLoader(Broken(), num_workers=1):
        pass


def broken() -> None:
    raise IndexError("no such utterance")


def left_open() -> None:
    """Fail, while a thread that is no daemon keeps the process: its connections stay open."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    broken()


FAILURES: Dict[str, Callable[[], Any]] = {
    "raises": broken,
    "worker": read,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "left_open": left_open,
}


def train(how: str, step: Callable[[], None]) -> None:
    for number in range(1, 20):
        if distributed.get_rank() == 1 and number == 8:
            if how == "early":
                return
            FAILURES.get(how, lambda: None)()
        step()
        # A sign of life has the step that was begun last.
        time.sleep(0.3 if how == "killed" else 0)


def child() -> None:
    sys.exit(1)


def forked() -> None:
    """Children that fail, each in its way."""
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    number = os.fork()
    if not number:
        # What Python runs at an exit, without the destructors of torch, which may hang in a forked child.
        atexit._run_exitfuncs()
        os._exit(1)
    os.waitpid(number, 0)


def restarted() -> None:
    if distributed.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        broken()


def failed_last() -> None:
    """One rank fails when they need each other no more."""
    if distributed.get_rank() == 1:
        broken()
    time.sleep(ALONE)


RIGHT: Dict[str, Callable[[], Any]] = {"forked": forked, "restarted": restarted, "failed_last": failed_last}


def skips(model: Any, step: int = 3) -> None:
    """One rank skips a backward, and comes to the end of its program while the other one waits for it."""
    for number in range(1, 7):
        loss = model(torch.ones(1, 2)).sum()
        if distributed.get_rank() == 0 or number != step:
            loss.backward()


def skips_and_leaves(model: Any) -> None:
    """The same, and the rank destroys its process group, as a careful program does."""
    skips(model)
    distributed.destroy_process_group()


def ragged(model: Any) -> None:
    """Ranks gather tensors of different sizes: gloo aborts one of them."""
    model(torch.ones(1, 2)).sum().backward()
    tensor = torch.zeros(300 + 100 * distributed.get_rank())
    distributed.all_gather([torch.zeros_like(tensor) for _ in range(2)], tensor)
    distributed.barrier()


class Parts(torch.nn.Module):
    """Two layers, of which one may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, alone: bool = False) -> torch.Tensor:
        hidden: torch.Tensor = self.a(x)
        return hidden if alone else self.b(hidden)


def left_out(rank: int) -> None:
    """A rank leaves out a part of the parameters in a step."""
    model = DistributedDataParallel(Parts())
    for number in range(3):
        model(torch.ones(1, 2), number == 1 and distributed.get_rank() == rank).sum().backward()


def added_here(model: Any) -> None:
    """One rank trains a parameter that DDP does not know, for longer than one step."""
    parts = Parts()
    wrapped = DistributedDataParallel(parts)
    if distributed.get_rank() == 1:
        parts.a.register_parameter("own", torch.nn.Parameter(torch.ones(2)))
        parts.a.register_forward_hook(lambda module, inputs, output: output * module.own)
    for _ in range(9):
        wrapped(torch.ones(1, 2)).sum().backward()


def short_without_average(model: Any) -> None:
    """A run of five steps under no_sync."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.ones(1, 2) * (1 + distributed.get_rank())).pow(2).sum().backward()
            optimizer.step()
        distributed.barrier()


def averaged_at_the_end(model: Any) -> None:
    """The same, and the program averages the parameters once, when it is done."""
    short_without_average(model)
    for parameter in model.parameters():
        distributed.all_reduce(parameter.data)
        parameter.data /= 2


# Ranks that do not do the same.
APART: Dict[str, Callable[[Any], None]] = {
    "left_out_here": lambda model: left_out(1),
    "left_out_on_the_first": lambda model: left_out(0),
    "skips_last": lambda model: skips(model, 6),
    "left_out_on_both": lambda model: left_out(distributed.get_rank()),
    **{
        each.__name__: each
        for each in (skips, skips_and_leaves, ragged, added_here, short_without_average, averaged_at_the_end)
    },
}


def work(how: str) -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()

    if how in APART:
        APART[how](model)
        return
    if how in RIGHT:
        step()
        RIGHT[how]()
        if how != "failed_last":
            step()
        return
    train(how, step)


def begin(how: str) -> None:
    """Make the process group. torch 2.13 gives restarted ranks the addresses of the first ones, mostly."""
    own: Dict[str, Any] = {}
    if how == "restarted":
        file = f"{os.getcwd()}/store-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        own = {"init_method": f"file://{file}", "rank": int(os.environ["RANK"]), "world_size": 2}
    distributed.init_process_group("gloo", **own)


if __name__ == "__main__":
    begin(sys.argv[1])
    work(sys.argv[1])
    print("done", flush=True)
