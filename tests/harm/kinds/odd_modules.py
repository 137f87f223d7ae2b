"""Modules that are not there yet, refuse, or count what is asked of them: ddpfix has no business with them."""

import contextlib
import importlib.util
import sys
import time
import types

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, fitted, net, state
from tests.harm.program import program, script

COPIES = "from torch.distributed import all_reduce, destroy_process_group, init_process_group"


def lazy(name):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def trained(rank):
    dist.init_process_group("gloo")
    wrapped = fitted(rank)
    dist.barrier()
    # torch's gloo waits for its thread with the GIL held, which that thread may need to let the barrier go.
    time.sleep(0.5)
    dist.destroy_process_group()
    return state(wrapped)


def lazy_that_cannot_be_imported():
    spec = importlib.util.find_spec("chunk" if sys.version_info < (3, 13) else "wave")
    loader = type("Broken", (), {"exec_module": lambda self, module: 1 / 0, "create_module": lambda self, spec: None})()
    spec.loader = importlib.util.LazyLoader(loader)
    sys.modules["not_here"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class Constants(types.ModuleType):
    def __setattr__(self, name, value):
        raise AttributeError(f"{name} is a constant")


class Counting(types.ModuleType):
    asked = []

    def __getattribute__(self, name):
        Counting.asked.append(name)
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        Counting.asked.append(name)
        super().__setattr__(name, value)


class Settings:
    """An object in the place of a module, as of a configuration that has not been read."""

    asked = []

    @property
    def __class__(self):
        Settings.asked.append("class")
        return types.ModuleType

    def __getattr__(self, name):
        Settings.asked.append(name)
        raise RuntimeError("not configured")


@program(group=False, sample=True)
def modules_that_are_odd(rank, size):
    """Lazy ones; those that refuse or count; one that makes what is asked for (PEP 562); one that is none."""
    wave, demanded = lazy("wave"), []
    lazy_that_cannot_be_imported()
    constants, counting, made = Constants("constants"), Counting("counting"), types.ModuleType("on_demand")
    made.__getattr__ = lambda name: demanded.append(name)
    for module in (constants, counting, made):
        exec(COPIES, vars(module))
        sys.modules[vars(module)["__name__"]] = module
    sys.modules.update(settings=Settings(), nothing=None)
    same = [constants.init_process_group is dist.init_process_group]
    Counting.asked.clear()
    found = trained(rank), [*Counting.asked], demanded, [*Settings.asked]
    del sys.modules["settings"]
    same.append(constants.init_process_group is dist.init_process_group)
    return found, same, type(wave).__name__, wave.__name__, type(wave).__name__


@program(group=False)
def module_that_is_executed_by_hand(rank, size):
    """A second copy of a module of torch, as a plug-in loader makes it."""
    spec = importlib.util.find_spec("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dist.init_process_group("gloo")
    wrapped = DDP(net())
    wrapped.register_comm_hook(None, module.allreduce_hook)
    fit(wrapped, rank, other=True)
    return state(wrapped)


@program(group=False)
def modules_come_and_go(rank, size):
    """Names that are imported and dropped while the group is up."""
    dist.init_process_group("gloo")
    for name in ("wave", "sndhdr_not_here"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
        sys.modules.pop(name, None)
    wrapped = fitted(rank)
    box = torch.ones(1)
    dist.all_reduce(box)
    return state(wrapped), box


for each in ("torch_by_lazy_loader", "torch_by_module_from_spec"):
    script("odd_modules", "odd_start", variant=each, arguments=(each,), fresh=True, sample=each.endswith("loader"))
script("odd_modules", "torch_asked_before_it_is_there", fresh=True)
