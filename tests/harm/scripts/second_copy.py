import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("DDPFIX"):
    # A runner that isolates modules finds a checkout before the installed package.
    import ddpfix

    root = Path(ddpfix.__file__).parent.parent
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    for name in ("ddpfix", "patches"):
        shutil.copytree(root / name, Path(folder) / name)
    shutil.copy(root / "compat_matrix.yaml", folder)
    with mock.patch.dict(sys.modules), mock.patch.object(sys, "path", [folder, *sys.path]):
        for name in [name for name in sys.modules if name.partition(".")[0] == "ddpfix"]:
            del sys.modules[name]
        import ddpfix.auto

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(2, 1))
model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
import wave  # noqa: E402, F401  (the import system still works)

if dist.get_rank() == 0:
    print([each.grad.tolist() for each in model.parameters()])
dist.destroy_process_group()
