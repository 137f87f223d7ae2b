import os
import signal
import sys

import torch.distributed as dist
from a_few_steps import train

train()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    dist.barrier()
    print("saved")
    sys.exit(0)
