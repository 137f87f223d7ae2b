import code
import sys

import torch.distributed as dist
from a_few_steps import train

train()
console = code.InteractiveConsole({"dist": dist})
for line in ("1 / 0", "import nothing_of_that_name", "print(dist.get_world_size())"):
    console.push(line)
dist.barrier()
sys.exit(0)
