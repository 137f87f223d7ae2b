"""torch is executed at its first use."""

import importlib.util
import sys


def lazy(name):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


torch = lazy("torch")
torch.distributed.init_process_group("gloo")
wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
wrapped(torch.ones(1, 4)).sum().backward()
print(wrapped.module.weight.grad)
torch.distributed.destroy_process_group()
