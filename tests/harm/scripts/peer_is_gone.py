"""Rank 1 ends, and uploads for a while; rank 0 has the error of its collective dealt with as the argument names."""

import atexit
import code
import sys
import threading
import time
import traceback
import unittest

import torch
import torch.distributed as dist


def saved(where):
    torch.save(torch.ones(3), "last.pt")
    print("saved", where, flush=True)


def excepthook_saves():
    def last_resort(kind, value, trace):
        saved(f"after {kind.__name__}")
        traceback.print_exception(kind, value, trace)

    sys.excepthook = last_resort
    dist.all_reduce(torch.ones(1))


def atexit_saves():
    atexit.register(saved, "at the exit")
    dist.all_reduce(torch.ones(1))


def console_goes_on():
    console = code.InteractiveInterpreter({"dist": dist, "torch": torch})
    for cell in ("x = torch.ones(1)", "dist.all_reduce(x)", "print('the next cell:', x.sum().item())"):
        console.runsource(cell)


def unittest_goes_on():
    class Tests(unittest.TestCase):
        def test_a_collective(self):
            dist.all_reduce(torch.ones(1))

        def test_b_that_comes_next(self):
            print("the next test runs")

    result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Tests))
    print(result.testsRun, "tests,", len(result.errors), "errors")


dist.init_process_group("gloo")
if dist.get_rank() == 1:
    threading.Thread(target=time.sleep, args=(31,)).start()
    sys.exit(0)
globals()[sys.argv[1]]()
