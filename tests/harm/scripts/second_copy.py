import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("DDPFIX"):
    # As where PYTHONPATH has a checkout, and a parent process has set up the installed package.
    import ddpfix

    root = Path(ddpfix.__file__).parent.parent
    folder = Path(tempfile.mkdtemp())
    for name in ("ddpfix", "patches"):
        shutil.copytree(root / name, folder / name)
    shutil.copy(root / "compat_matrix.yaml", folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ddpfix"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    import ddpfix.auto

    shutil.rmtree(folder)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(2, 1))
model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
import wave  # noqa: E402, F401  (the import system still works)

if dist.get_rank() == 0:
    print([each.grad.tolist() for each in model.parameters()])
dist.destroy_process_group()
