"""Errors that the program has dealt with: its end is a good one, and nobody is told otherwise."""

import signal
import subprocess
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, net, state
from tests.harm.program import program, script


def no_room(rank):
    if rank == 0:
        raise MemoryError("no room for this batch")


def interrupted(rank):
    raise KeyboardInterrupt


def warned_of(rank):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("slow", stacklevel=1)


def thread_fails(rank):
    """A logger's thread dies; the training does not mind."""
    seen = []
    threading.excepthook = lambda about: seen.append(about.exc_type.__name__)
    worker = threading.Thread(target=lambda: 1 / 0)
    worker.start()
    worker.join()
    threading.excepthook = threading.__excepthook__
    return seen


def children_fail(rank):
    return [subprocess.call([sys.executable, "-c", f"import sys; sys.exit({code})"]) for code in (1, 0)]


def loader_ends_with_an_error(rank):
    def numbers():
        yield from range(5)
        raise RuntimeError("end of file")

    return list(numbers())


def generator_is_left(rank):
    closed = []

    def lines():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    for number in lines():
        if number == 3:
            break
    return closed


def alarm_rings(rank):
    def ring(number, frame):
        raise TimeoutError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        time.sleep(30)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


MISHAPS = (
    *(no_room, interrupted, warned_of, thread_fails, children_fail, loader_ends_with_an_error, generator_is_left),
    *(alarm_rings, lambda rank: sys.exit(2)),
    # The loss of one batch needs no gradient; collectives refuse what they are given.
    lambda rank: torch.zeros(()).backward(),
    lambda rank: dist.all_reduce("text"),
    lambda rank: dist.broadcast(torch.ones(1), src=9),
)


@program(sample=True)
def mishaps_that_the_program_deals_with(rank, size):
    wrapped, found = DDP(net()), []
    for mishap in MISHAPS:
        try:
            found.append(mishap(rank))
        except BaseException as failure:
            found.append(type(failure).__name__)
        fit(wrapped, rank, steps=2, other=True)
        dist.barrier()
    return found, state(wrapped)


def loss_that_is_not_finite(rank, size):
    wrapped, skipped = DDP(net()), 0
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for turn in range(6):
        optimizer.zero_grad()
        out = wrapped(torch.full((2, 4), float("nan") if turn == 3 else rank + turn + 0.0), other=True)
        out.pow(2).mean().backward()
        try:
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
        except RuntimeError:
            skipped += 1
    return skipped, state(wrapped)


def error_kept_for_later(rank, size):
    """A runner in the manner of pytest: outcomes are collected, the error's traceback is kept."""
    outcomes = []

    def test_fails():
        raise AssertionError("2 != 3")

    def test_passes():
        fit(DDP(net()), rank, other=True)

    for test in (test_fails, test_passes, test_fails):
        try:
            test()
            outcomes.append("passed")
        except AssertionError as failure:
            sys.last_value, sys.last_type = failure, type(failure)
            outcomes.append(str(failure))
    return outcomes


for each in (
    *("console_cell_raises", "exit_code_zero_by_system_exit", "exit_from_a_thread", "interactive_session"),
    *("interrupted_and_saved", "own_excepthook_is_called", "stops_by_os_exit", "unittest_with_a_failure"),
):
    script("failures", "a_good_end", variant=each, arguments=(each,))
script("failures", "arguments_refused", sample=True)
script("failures", "arguments_refused", variant="torchrun", launcher="torchrun")
