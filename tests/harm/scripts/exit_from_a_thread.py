import sys
import threading

import torch.distributed as dist
from a_few_steps import train

train()
worker = threading.Thread(target=sys.exit, args=(3,))
worker.start()
worker.join()
dist.barrier()
