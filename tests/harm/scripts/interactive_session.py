import io
import sys

import torch.distributed as dist
from a_few_steps import train

train()
sys.ps1 = "> "
try:
    eval("1 / 0")
except ZeroDivisionError as failure:
    sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, failure.__traceback__
    sys.excepthook(type(failure), failure, None)
kept, sys.stderr = sys.stderr, io.StringIO()
sys.stderr = kept
dist.barrier()
