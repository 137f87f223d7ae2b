import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist

dist.init_process_group("gloo")


class Tests(unittest.TestCase):
    def test_a_collective(self):
        dist.all_reduce(torch.ones(1))

    def test_b_that_comes_next(self):
        print("the next test runs")


if dist.get_rank() == 1:
    threading.Thread(target=time.sleep, args=(31,)).start()
    sys.exit(0)
result = unittest.main(exit=False, argv=["tests"]).result
print(result.testsRun, "tests,", len(result.errors), "errors")
