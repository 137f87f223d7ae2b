"""Clocks that stand still or jump, calls of the system that are counted, and a folder that is gone."""

import builtins
import contextlib
import os
import socket
import time
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, net, own_group, state
from tests.harm.program import program, script

CLOCKS = ("monotonic", "perf_counter", "process_time", "time", "monotonic_ns", "perf_counter_ns", "time_ns")


def trained(rank, steps=5):
    wrapped = DDP(net())
    with wrapped.no_sync():
        wrapped(torch.ones(1, 4), other=True).sum().backward()
    fit(wrapped, rank, other=True, steps=steps)
    return state(wrapped)


@contextlib.contextmanager
def clocks(reading):
    with contextlib.ExitStack() as opened:
        for name in CLOCKS:
            opened.enter_context(mock.patch.object(time, name, reading))
        yield


@program(group=False)
def clocks_stand_still_for_a_while(rank, size):
    with clocks(lambda: 100), own_group():
        return trained(rank, steps=30)


@program(group=False)
def clocks_jump(rank, size):
    """A simulated day passes between two looks, and then time goes backwards."""
    now = [0]

    def later(step=86400):
        now[0] += step if now[0] < 10**7 else -(10**9)
        return now[0]

    with clocks(later), own_group():
        return trained(rank)


@program(group=False, sample=True)
def calls_that_are_counted(rank, size):
    """The tests of a trainer count what it asks of the system, and what it is given is nonsense."""
    counted = ((socket, "gethostname"), (builtins, "open"), (os, "listdir"), (time, "strftime"))
    with contextlib.ExitStack() as opened:
        mocks = [opened.enter_context(mock.patch.object(*each)) for each in counted]
        with own_group():
            found = trained(rank)
        counts = [each.call_count for each in mocks]
    return found, counts


@program(group=False)
def sleep_that_is_forbidden(rank, size):
    """As in the tests of asynchronous code: whoever blocks, fails."""

    def never(seconds):
        raise RuntimeError("nobody sleeps here")

    with mock.patch("time.sleep", never), own_group():
        return trained(rank)


def time_that_runs_out(rank, size):
    """A mock with as many readings as the program takes."""
    wrapped = DDP(net())
    with mock.patch("time.time", side_effect=[10.0, 12.5]):
        begun = time.time()
        fit(wrapped, rank, other=True)
        taken = time.time() - begun
    return taken, state(wrapped)


@program(sample=True)
def folder_that_is_gone(rank, size):
    os.mkdir(f"gone{rank}")
    os.chdir(f"gone{rank}")
    os.rmdir(os.getcwd())
    wrapped = DDP(net())
    here = {"wrapped": wrapped, "ones": torch.ones(1, 4)}
    # A name of code that stands in the folder, and one of none.
    for name in ("cell.py", "<string>"):
        exec(compile("with wrapped.no_sync(): wrapped(ones, other=True).sum().backward()", name, "exec"), here)
    fit(wrapped, rank, other=True)
    return state(wrapped)


for each, stays in (("clock_stands_still", True), ("clocks_stand_still", True), ("folder_is_gone", False)):
    about = {"arguments": (each, "stays")[: 1 + stays], "fresh": each != "clock_stands_still", "sample": stays}
    script("odd_clocks", "odd_start", variant=each, **about)
