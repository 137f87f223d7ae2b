"""A lazy module waits while torch is imported by somebody else, and a thread asks for a part of it."""

import importlib.util
import sys
import threading

spec = importlib.util.find_spec("wave")
spec.loader = importlib.util.LazyLoader(spec.loader)
wave = importlib.util.module_from_spec(spec)
sys.modules["wave"] = wave
spec.loader.exec_module(wave)
found = []


def ask():
    import torch.nn.parallel

    found.append(torch.nn.parallel.DistributedDataParallel)


threads = [threading.Thread(target=ask) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
import torch  # noqa: E402

torch.distributed.init_process_group("gloo")
wrapped = found[0](torch.nn.Linear(4, 2))
print(type(wave).__name__, len(set(found)), wrapped(torch.ones(1, 4)).shape)
torch.distributed.destroy_process_group()
