"""A few steps, and then the end that the argument names: a good one, whatever was raised on the way."""

import code
import io
import os
import signal
import sys
import threading
import unittest

import torch.distributed as dist
from a_few_steps import train


def console_cell_raises():
    console = code.InteractiveConsole({"dist": dist})
    for line in ("1 / 0", "import nothing_of_that_name", "print(dist.get_world_size())"):
        console.push(line)
    dist.barrier()
    sys.exit(0)


def exit_code_zero_by_system_exit():
    try:
        raise ValueError("first")
    except ValueError:
        dist.barrier()
        raise SystemExit(0) from None


def exit_from_a_thread():
    worker = threading.Thread(target=sys.exit, args=(3,))
    worker.start()
    worker.join()
    dist.barrier()


def interactive_session():
    sys.ps1 = "> "
    try:
        eval("1 / 0")
    except ZeroDivisionError as failure:
        sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, failure.__traceback__
        sys.excepthook(type(failure), failure, None)
    kept, sys.stderr = sys.stderr, io.StringIO()
    sys.stderr = kept
    dist.barrier()


def interrupted_and_saved():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        dist.barrier()
        print("saved")
        sys.exit(0)


def own_excepthook_is_called():
    def report(kind, value, trace):
        print("the program's own hook:", kind.__name__, value, flush=True)

    sys.excepthook = report
    try:
        raise KeyError("missing")
    except KeyError:
        sys.excepthook(*sys.exc_info())
    dist.barrier()
    print(sys.excepthook is report)


def stops_by_os_exit():
    dist.barrier()
    try:
        sys.exit(5)
    except SystemExit:
        sys.stdout.flush()
        os._exit(0)


def unittest_with_a_failure():
    class Tests(unittest.TestCase):
        def test_one(self):
            self.assertEqual(2, 3)

    result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Tests))
    dist.barrier()
    print(len(result.failures))


train()
globals()[sys.argv[1]]()
