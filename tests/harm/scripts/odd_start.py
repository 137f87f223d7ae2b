"""A few steps behind the odd start that the argument names; the second one says that the group stays up."""

import importlib.util
import os
import sys
import time


def clock_stands_still():
    time.monotonic = lambda: 100.0


def clocks_stand_still():
    for name in ("monotonic", "perf_counter", "process_time", "time"):
        setattr(time, name, lambda: 100.0)
    time.sleep = lambda seconds: None


def folder_is_gone():
    import torch._dynamo  # noqa: F401

    os.mkdir(f"gone{os.environ['RANK']}")
    os.chdir(f"gone{os.environ['RANK']}")
    os.rmdir(os.getcwd())
    sys.path[:] = [each for each in sys.path if each]


def made(loader=lambda loader: loader):
    spec = importlib.util.find_spec("torch")
    spec.loader = loader(spec.loader)
    sys.modules["torch"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def torch_by_lazy_loader():
    """torch is executed at its first use."""
    made(importlib.util.LazyLoader)


def torch_by_module_from_spec():
    """torch is made and executed by hand, as embedding hosts do."""
    made()


globals()[sys.argv[1]]()
torch = sys.modules.get("torch") or importlib.import_module("torch")
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
for _ in range(20):
    wrapped(torch.ones(1, 4)).sum().backward()
torch.distributed.barrier()
print(wrapped.module.weight.grad)
if sys.argv[2:] != ["stays"]:
    torch.distributed.destroy_process_group()
