"""Errors that the program has dealt with: its end is a good one, and nobody is told otherwise."""

import contextlib
import subprocess
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, fitted, net, state
from tests.harm.program import program, script


@program(sample=True)
def exit_that_is_caught(rank, size):
    def option():
        sys.exit(2)

    with contextlib.suppress(SystemExit):
        option()
    return state(fitted(rank))


def step_that_is_tried_again(rank, size):
    wrapped, tries = DDP(net()), 0
    for turn in range(4):
        try:
            if rank == 0 and turn % 2:
                raise MemoryError("no room for this batch")
        except MemoryError:
            tries += 1
        fit(wrapped, rank, steps=2, other=True)
    return tries, state(wrapped)


def interrupt_that_is_caught(rank, size):
    wrapped = DDP(net())
    with contextlib.suppress(KeyboardInterrupt):
        fit(wrapped, rank, other=True)
        raise KeyboardInterrupt
    return state(wrapped)


def warnings_as_errors(rank, size):
    wrapped = DDP(net())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("slow", stacklevel=1)
        except UserWarning:
            fit(wrapped, rank, other=True)
    return state(wrapped)


def thread_that_fails(rank, size):
    """A logger's thread dies; the training does not mind."""
    seen = []
    threading.excepthook = lambda about: seen.append(about.exc_type.__name__)
    worker = threading.Thread(target=lambda: 1 / 0)
    worker.start()
    worker.join()
    threading.excepthook = threading.__excepthook__
    wrapped = fitted(rank)
    return seen, state(wrapped)


def child_that_fails(rank, size):
    codes = [subprocess.call([sys.executable, "-c", f"import sys; sys.exit({code})"]) for code in (1, 0)]
    wrapped = fitted(rank)
    return codes, state(wrapped)


def loader_that_raises_at_its_end(rank, size):
    def numbers():
        yield from range(5)
        raise RuntimeError("end of file")

    wrapped, count = DDP(net()), 0
    try:
        for _ in numbers():
            fit(wrapped, rank, steps=1, other=True)
            count += 1
    except RuntimeError:
        pass
    return count, state(wrapped)


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


def backward_that_fails_and_is_dropped(rank, size):
    """The loss of one batch needs no gradient; all ranks see that and go on."""
    wrapped, failures = DDP(net()), 0
    for _ in range(3):
        try:
            torch.zeros(()).backward()
        except RuntimeError:
            failures += 1
        fit(wrapped, rank, steps=2, other=True)
    return failures, state(wrapped)


def collective_refused_and_caught(rank, size):
    failures = 0
    for bad in (lambda: dist.all_reduce("text"), lambda: dist.broadcast(torch.ones(1), src=9)):
        try:
            bad()
        except Exception:
            failures += 1
    dist.barrier()
    return failures, fit(DDP(net()), rank, other=True)


def early_end_of_a_generator(rank, size):
    closed = []

    def lines():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    for number in lines():
        if number == 3:
            break
    wrapped = fitted(rank)
    return closed, state(wrapped)


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


def timeout_of_an_alarm(rank, size):
    import signal

    def ring(number, frame):
        raise TimeoutError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with contextlib.suppress(TimeoutError):
        time.sleep(30)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return fit(DDP(net()), rank, other=True)


for each in (
    "arguments_refused",
    "console_cell_raises",
    "exit_code_zero_by_system_exit",
    "exit_from_a_thread",
    "interactive_session",
    "interrupted_and_saved",
    "own_excepthook_is_called",
    "stops_by_os_exit",
    "unittest_with_a_failure",
):
    script("failures", each, sample=each == "arguments_refused")
script("failures", "retried_in_a_spawned_worker", ranks=1)
script("failures", "arguments_refused", variant="torchrun", launcher="torchrun")
