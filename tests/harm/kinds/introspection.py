"""Programs that look at torch or count its calls: they find torch as it is."""

import contextlib
import functools
import inspect
import io
import logging
import pydoc
import re
import typing
import warnings
from unittest import mock

import torch
import torch.distributed as dist
import wrapt
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction, checkpoint
from torch.utils.data import DataLoader

from tests.harm.made import batches, fit, fitted, meeting, net, state, stepped, steps
from tests.harm.program import program

CALLS = (
    *(DDP, DDP.__init__, DDP.forward, DDP.no_sync, DDP.join),
    *(dist.init_process_group, dist.destroy_process_group, dist.new_group, dist.all_reduce, dist.barrier),
    *(DataLoader, DataLoader.__init__, DataLoader.__iter__, nn.Module.__call__, nn.utils.clip_grad_norm_, checkpoint),
    *(torch.optim.Optimizer.step, torch.optim.SGD.step, torch.optim.Optimizer.zero_grad),
    *(torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad),
    *(torch.save, torch.manual_seed, torch.get_rng_state),
)


def of_all(look):
    # The first rank keeps the store: it stays until the others have come up.
    dist.barrier()
    found = []
    for each in CALLS:
        try:
            found.append((each.__qualname__, look(each)))
        except Exception as failure:
            found.append((each.__qualname__, type(failure).__name__))
    return found


def _without_places(described):
    return re.sub(r" at 0x[0-9a-f]+", "", str(described))


LOOKS = {
    "signature": lambda each: _without_places(inspect.signature(each)),
    "full argument spec": lambda each: _without_places(inspect.getfullargspec(each)),
    "type hints": lambda each: sorted(map(str, typing.get_type_hints(each).items())),
    "names": lambda each: [each.__module__, each.__qualname__, each.__doc__, inspect.isfunction(each)],
    "source": inspect.getsource,
}


@program(sample=True)
def what_functions_show(rank, size):
    pages = [pydoc.render_doc(each) for each in (DDP, DataLoader, dist.init_process_group)]
    places = (DDP, DataLoader, torch.optim.Optimizer, torch.optim.SGD, CheckpointFunction, nn.Module)
    return {name: of_all(look) for name, look in LOOKS.items()}, pages, [sorted(dir(each)) for each in places]


def autospecs(rank, size):
    mocked = mock.create_autospec(DDP)
    wrapped = mocked(net(), find_unused_parameters=True)
    wrapped.forward(1)
    failures = 0
    for bad in (lambda: mocked(), lambda: mocked(net(), nothing=1), lambda: wrapped.no_sync(3)):
        try:
            bad()
        except TypeError:
            failures += 1
    group = mock.create_autospec(dist.init_process_group)
    group("gloo", rank=0)
    return failures, sorted(name for name in dir(mocked) if not name.startswith("_")), str(group.call_args)


@program(sample=True)
def attributes_of_a_wrapper(rank, size):
    wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    fit(wrapped, rank, optimizer=optimizer, other=True)
    return sorted(vars(wrapped)), sorted(vars(wrapped.module)), sorted(vars(optimizer)), repr(wrapped)


def counting(kind, method):
    """Return a mode that keeps the names of what it meets."""

    def met(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))

    def begin(self):
        kind.__init__(self)
        self.names = []

    return type("Counting", (kind,), {"__init__": begin, method: met})


Counted = counting(TorchFunctionMode, "__torch_function__")
Dispatched = counting(TorchDispatchMode, "__torch_dispatch__")


@contextlib.contextmanager
def counted(into):
    with Counted() as functions, Dispatched() as operators:
        yield
    into.append((functions.names, operators.names))


def calls_counted(rank, size):
    """In the constructor, in steps, and with the flag."""
    found = []
    with counted(found):
        wrapped = DDP(net())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    with counted(found):
        for x, y in batches(rank, 3):
            stepped(wrapped, optimizer, x, y, other=True)
    flagged = DDP(net(), find_unused_parameters=True)
    with counted(found):
        for x, y in batches(rank, 3):
            (flagged(x) - y).pow(2).mean().backward()
    return found


Watched = meeting(torch.Tensor)


def batches_of_a_tensor_subclass(rank, size):
    wrapped = DDP(net())
    for x, y in steps(torch.optim.SGD(wrapped.parameters(), 0.1), rank, 3):
        loss = (wrapped(x.as_subclass(Watched), other=True) - y).pow(2).mean()
        loss.backward()
    return Watched.seen, type(loss).__name__, state(wrapped)


@program(may=(r"is no longer in place",))
def mocks_of_the_program(rank, size):
    with mock.patch.object(DDP, "forward", autospec=True, side_effect=DDP.forward) as called:
        wrapped = fitted(rank)
        count = called.call_count
    fit(wrapped, rank, other=True)
    with mock.patch("torch.distributed.barrier") as barrier:
        dist.barrier()
    return count, barrier.call_count, state(wrapped)


def wrapt_around_torch(rank, size):
    calls = []

    def note(inner, instance, args, kwargs):
        calls.append(inner.__name__)
        return inner(*args, **kwargs)

    for owner, name in ((DDP, "__init__"), (DDP, "forward"), (torch.optim.SGD, "step"), (dist, "all_reduce")):
        wrapt.wrap_function_wrapper(owner, name, note)
    wrapped = fitted(rank)
    dist.all_reduce(torch.ones(1))
    return calls, state(wrapped)


def replaced_and_put_back(rank, size):
    kept, count = DDP.__init__, []

    @functools.wraps(kept)
    def constructor(self, *args, **kwargs):
        count.append(len(args))
        kept(self, *args, **kwargs)

    DDP.__init__ = constructor
    fit(DDP(net()), rank, other=True)
    DDP.__init__ = kept
    fit(DDP(net()), rank, other=True)
    return count, DDP.__init__ is kept


def functions_of_a_class(rank, size):
    """A class hands out the same function each time, which refuses what is no instance."""
    found = [DDP.__init__ is DDP.__init__, DDP.forward is DDP.forward, DataLoader.__iter__ is DataLoader.__iter__]
    for bad in ((), (None,), (None, net()), (3, net())):
        try:
            DDP.__init__(*bad)
        except Exception as failure:
            found.append((type(failure).__name__, str(failure)))
    wrapped = DDP.__new__(DDP)
    DDP.__init__(wrapped, module=net(), find_unused_parameters=False)
    fit(wrapped, rank, other=True)
    return found, state(wrapped)


def warnings_and_logs_of_a_run(rank, size):
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(DDP(net()), rank, other=True)
    logging.getLogger().removeHandler(handler)
    return [each.category.__name__ for each in caught], text.getvalue(), len(logging.getLogger().handlers)
