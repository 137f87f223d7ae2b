import sys

import torch.distributed as dist
from a_few_steps import train


def report(kind, value, trace):
    print("the program's own hook:", kind.__name__, value, flush=True)


train()
sys.excepthook = report
try:
    raise KeyError("missing")
except KeyError:
    sys.excepthook(*sys.exc_info())
dist.barrier()
print(sys.excepthook is report)
