"""Warnings and errors that name the program's own lines, through any call of torch's that ddpfix has wrapped."""

import functools
import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.data import DataLoader

from tests.harm.made import Net, batches, fit, net, seeded
from tests.harm.program import program

LEVELS = range(1, 16)


def caught(action):
    """Return where each warning of a call is, as a program prints it."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        action()
    return [(each.category.__name__, os.path.basename(each.filename), each.lineno) for each in found]


def warn(text="odd"):
    """Warn at the line of each caller."""
    for level in LEVELS:
        warnings.warn(f"{text} {level}", stacklevel=level)


class Warns(Net):
    def forward(self, x, **how):
        warn()
        return super().forward(x, **how)


warns = functools.partial(seeded, Warns)


@program(sample=True)
def warning_of_a_full_backward_hook(rank, size):
    model = net()
    model.register_full_backward_hook(lambda *_: None)
    wrapped = DDP(model)
    found = []
    for x, _ in batches(rank, 12):
        found += caught(lambda: wrapped(x, other=True).sum().backward())  # noqa: B023
    with wrapped.no_sync():
        found += caught(lambda: torch.autograd.backward(wrapped(x, other=True).sum()))
    return found


@program(sample=True)
def warnings_of_a_model_by_level(rank, size):
    wrapped = DDP(warns())
    found = [caught(lambda: fit(wrapped, rank, steps=1, other=True)) for _ in range(12)]
    wrapped.eval()
    with torch.no_grad():
        found.append(caught(lambda: wrapped(torch.ones(1, 4))))
    return found


def warnings_of_a_hook_by_level(rank, size):
    wrapped = DDP(net())
    found = []
    for x, _ in batches(rank, 6):
        loss = wrapped(x, other=True).sum()
        loss.register_hook(lambda gradient: warn())
        found.append(caught(loss.backward))
    return found


def warnings_that_are_shown_once(rank, size):
    """Each module keeps what was shown of its lines."""
    model, shown = warns(), []
    model.register_full_backward_hook(lambda *_: None)
    wrapped = DDP(model)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda *about: shown.append((str(about[0])[:20], os.path.basename(about[2]), about[3]))
        fit(wrapped, rank, steps=4, other=True)
    kept = {name: vars(module).get("__warningregistry__", {}) for name, module in list(sys.modules.items())}
    return shown, sorted((name, str(key)) for name, found in kept.items() for key in found if "odd" in str(key))


class Checked(DDP):
    """Warns while torch's constructor runs."""

    def _build_params_for_reducer(self):
        warn()
        return super()._build_params_for_reducer()

    def register_comm_hook(self, state, hook):
        warn()
        super().register_comm_hook(state, hook)


def warnings_of_a_constructor(rank, size):
    found = caught(lambda: DDP(net(), check_reduction=True))
    wrapped = []
    found += caught(lambda: wrapped.append(Checked(net())))
    found += caught(lambda: wrapped[0].register_comm_hook(None, _divided))
    fit(wrapped[0], rank, other=True)
    return found


def _divided(state, bucket):
    found = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(found, async_op=True).get_future().then(lambda done: done.value()[0])


class Named(str):
    """The name of a backend, which warns where torch reads it."""

    def upper(self):
        warn()
        return super().upper()

    def lower(self):
        warn()
        return super().lower()


def warnings_of_a_group_that_comes_up(rank, size):
    """The group of the suite makes room for one of the program's own."""
    dist.destroy_process_group()
    found = caught(lambda: dist.init_process_group(Named("gloo")))
    fit(DDP(net()), rank, other=True)
    return found


def place(error):
    """Return the frames of an error, with the texts of its causes."""
    found = []
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        found.append(
            (type(error).__name__, str(error)[:60], [(os.path.basename(each.filename), each.name) for each in frames])
        )
        error = error.__cause__ or error.__context__
    return found


def refused(action):
    try:
        action()
    except Exception as error:
        return place(error)
    return None


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def part(self, x):
        raise KeyError("no such speaker")

    def forward(self, x, where="forward"):
        if where == "checkpoint":
            return CheckpointFunction.apply(self.part, True, x)
        if where == "forward":
            raise LookupError("no such batch")
        out = self.layer(x)
        if where == "backward":
            out.register_hook(functools.partial(self.part))
        return out


class Holes(list):
    def __getitem__(self, at):
        raise FileNotFoundError("a.wav")


@program(sample=True)
def tracebacks_of_refused_calls(rank, size):
    wrapped = DDP(Breaks())
    x = torch.ones(2, 4, requires_grad=True)
    return [
        refused(lambda: DDP()),
        refused(lambda: DDP(net(), nothing=1)),
        refused(lambda: DDP(net(), None, None, 0, True, None, 25, False, True, False, False, 1, 2, 3, 4, 5, 6)),
        refused(lambda: DDP(nn.Tanh())),
        refused(lambda: wrapped(x)),
        refused(lambda: wrapped(x, nothing=1)),
        refused(lambda: wrapped(torch.ones(2, 5), where="")),
        refused(lambda: torch.no_grad()(wrapped)(x)),
        refused(lambda: next(iter(DataLoader(Holes([1, 2]))))),
        refused(lambda: wrapped(x, where="backward").sum().backward()),
        refused(lambda: torch.autograd.backward()),
        refused(lambda: torch.autograd.backward(x.sum(), nothing=1)),
        refused(lambda: CheckpointFunction.apply()),
        refused(lambda: CheckpointFunction.apply(wrapped.module.part, True, x)),
        refused(lambda: wrapped(x, where="checkpoint")),
        refused(lambda: wrapped.register_comm_hook(None)),
        refused(lambda: wrapped.register_comm_hook(None, 3)),
        refused(lambda: dist.init_process_group("gloo", nothing=1)),
        refused(lambda: dist.init_process_group("gloo")),
        refused(lambda: dist.destroy_process_group(1, 2)),
    ]
