"""``sys.exit`` is a built-in function, and a SystemExit that is caught is as it would be."""

import copy
import functools
import inspect
import pickle
import sys
import traceback
import types
from unittest import mock

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.harm.made import fit, fitted, net, state
from tests.harm.program import program


def caught(call, *args):
    try:
        call(*args)
    except BaseException as error:
        return error
    return None


def about(error):
    lines = [(each.name, each.line) for each in traceback.extract_tb(error.__traceback__)]
    return (
        type(error).__name__,
        str(error),
        getattr(error, "code", ""),
        lines,
        dict(vars(error)),
        repr(error.__context__),
    )


@program(sample=True)
def exit_of_a_class(rank, size):
    """A built-in function is no method, whoever holds it."""

    class Shell:
        quit = sys.exit

        def leave(self):
            self.quit(3)

    return about(caught(Shell().leave)), about(caught(Shell().quit)), fit(DDP(net()), rank, other=True)


@program(sample=True)
def traceback_of_a_caught_exit(rank, size):
    dist.barrier()

    def leave(code):
        sys.exit(code)

    def fails():
        try:
            int("x")
        except ValueError:
            sys.exit("no numbers")

    codes = (None, 0, 2, "no data", (1, 2), [1], True)
    return [about(caught(leave, each)) for each in codes], about(caught(fails)), about(caught(sys.exit, 1, 2))


def exit_that_is_looked_at(rank, size):
    dist.barrier()
    found = sys.exit
    shown = [
        repr(found),
        found.__name__,
        found.__module__,
        found.__doc__,
        found.__self__,
        str(inspect.signature(found)),
    ]
    kinds = inspect.isbuiltin(found), inspect.isfunction(found), inspect.isclass(found), inspect.isroutine(found)
    same = found == sys.__dict__["exit"], hash(found) == hash(sys.exit), callable(found), hasattr(found, "__get__")
    wrapped = functools.wraps(found)(lambda code: None)
    return shown, kinds, same, isinstance(found, types.BuiltinFunctionType), wrapped.__qualname__, dir(found)


def exit_that_is_copied(rank, size):
    """A handler that goes to a worker."""
    dist.barrier()
    texts = [pickle.dumps(sys.exit, protocol) for protocol in range(5)]
    same = [pickle.loads(each) is sys.exit for each in texts]
    return texts, same, copy.copy(sys.exit) is sys.exit, copy.deepcopy({"end": sys.exit})["end"] is sys.exit


def exit_that_is_sent(rank, size):
    """A test runner sends what ended a test to its parent, and keeps it with notes of its own."""
    dist.barrier()
    error = caught(sys.exit, 4)
    other, third = pickle.loads(pickle.dumps(error)), copy.deepcopy(error)
    error.test = "test_options"
    return about(other), about(third), dict(vars(error)), about(error.with_traceback(None))


def exit_with_an_error_that_is_there(rank, size):
    dist.barrier()
    error = SystemExit(5)
    error.reason = "budget"
    found = caught(sys.exit, error)
    return found is error, about(found)


def exit_of_ones_own(rank, size):
    """A framework that replaces it before the group comes up anew, and one that does so for a test."""
    left = []
    with mock.patch("sys.exit", left.append):
        sys.exit(1)
    with mock.patch("sys.exit", autospec=True) as ending:
        sys.exit(2)
    wrapped = fitted(rank)
    return left, ending.mock_calls == [mock.call(2)], state(wrapped), about(caught(sys.exit, 3))
