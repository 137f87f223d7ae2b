import os
import sys

import torch.distributed as dist
from a_few_steps import train

train()
dist.barrier()
try:
    sys.exit(5)
except SystemExit:
    sys.stdout.flush()
    os._exit(0)
