"""Threads, descriptors and files: what a program counts, joins and waits for is its own."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from tests.harm.made import batches, fit, fit_heads, fitted, in_threads, net, state, steps, two
from tests.harm.program import program, script


@program(sample=True)
def threads_that_are_counted_and_joined(rank, size):
    """By name while it trains; each that starts; those that are left once all others are joined."""
    wrapped, started, traced = DDP(net()), [], set()

    class Counted(threading.Thread):
        def start(self):
            started.append(self.name)
            super().start()

    threading.settrace(lambda *about: traced.add(threading.current_thread().name))
    threading.setprofile(None)
    kept, threading.Thread, names = threading.Thread, Counted, []
    try:
        for _ in range(3):
            fit(wrapped, rank, other=True)
            names.append(sorted(each.name for each in threading.enumerate()))
        dist.barrier()
    finally:
        threading.Thread = kept
        threading.settrace(None)
    for each in threading.enumerate():
        if each is not threading.current_thread():
            each.join()
    return names, threading.active_count(), started, sorted(traced)


def joined_after_the_group_is_destroyed(rank, size):
    fit(DDP(net()), rank, other=True)
    dist.barrier()
    dist.destroy_process_group()
    for each in threading.enumerate():
        if each is not threading.main_thread():
            each.join()
    return [each.name for each in threading.enumerate()]


def hooks_and_signals_of_the_interpreter(rank, size):
    kinds = [each for each in signal.Signals if each not in (signal.SIGKILL, signal.SIGSTOP)]
    before = [signal.getsignal(each) for each in kinds]
    fit(DDP(net()), rank, other=True)
    dist.barrier()
    hooks = (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook, warnings.showwarning, sys.exit)
    same = [after is one for after, one in zip(map(signal.getsignal, kinds), before)]
    return same, [each.__module__ for each in hooks], sys.gettrace() is None, sys.getprofile() is None


def children_that_are_forked(rank, size):
    """One closes all descriptors, another counts its threads."""
    fit(DDP(net()), rank, other=True)
    code = subprocess.call([sys.executable, "-c", "print(1)"], close_fds=True, stdout=subprocess.DEVNULL)
    child = os.fork()
    if child == 0:
        os.closerange(3, 4096)
        os._exit(3)
    codes = code, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, f"{threading.active_count()} {len(os.listdir('/proc/self/task'))}".encode())
        os._exit(0)
    os.wait()
    found = os.read(read, 100)
    os.close(read)
    os.close(write)
    return codes, found


def training_in_a_thread(rank, size):
    found = []
    worker = threading.Thread(target=lambda: found.append(state(fitted(rank))), name="trainer")
    worker.start()
    worker.join()
    return found


def loaders_threads_are_counted(rank, size):
    data, names = TensorDataset(torch.arange(32.0).reshape(8, 4)), []
    wrapped = DDP(net())
    for (x,) in DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True):
        wrapped(x, other=True).sum().backward()
        names.append(len([each for each in threading.enumerate() if not each.daemon]))
    return names


def certain(seed):
    """Return a model without dropout: threads share the stream that it would draw from."""
    model = net(seed)
    model.body[2] = torch.nn.Identity()
    return model


def own_groups(size):
    """Return a group for each of two threads, of the same ranks."""
    return [dist.new_group(list(range(size))) for _ in range(2)]


@program(ranks=3)
def models_trained_in_two_threads(rank, size):
    """One group a thread, one backward a step; each thread's model is its own."""
    models = [DDP(certain(seed), process_group=group) for seed, group in enumerate(own_groups(size))]

    def train(index):
        fit(models[index], rank, steps=10, other=True)
        return state(models[index])

    return in_threads(train)


@program(sample=True)
def models_wrapped_in_two_threads(rank, size):
    """Each on a group of its own with the same ranks, in another order on each rank, or at once: a backward a head.

    One has a flag that says no.
    """

    def trained(pause, flags):
        groups, models = own_groups(size), [two(seed) for seed in range(2)]

        def train(index):
            time.sleep(pause * (index if rank else 1 - index))
            flag = {"find_unused_parameters": False} if flags and index else {}
            return fit_heads(DDP(models[index], process_group=groups[index], **flag), rank + 10 * index, 20)

        return in_threads(train)

    return trained(0.05, False), trained(0.0, True)


def flagged_models_wrapped_in_two_threads(rank, size):
    groups, models = own_groups(size), [certain(seed) for seed in range(2)]

    def train(index):
        time.sleep(0.05 * (1 - index if rank else index))
        wrapped = DDP(models[index], process_group=groups[index], find_unused_parameters=True)
        fit(wrapped, rank + 10 * index, steps=20, other=index == 0)
        return state(wrapped)

    return in_threads(train)


def backwards_beside_a_forward_that_stands_still(rank, size):
    """One thread's model is in its forward on rank 0 while the other thread calls a backward for each head."""
    groups, models = own_groups(size), [two(seed) for seed in range(2)]
    begun, ended = threading.Event(), threading.Event()

    def stand_still(module, inputs):
        begun.set()
        ended.wait(60)

    if rank == 0:
        models[0].register_forward_pre_hook(stand_still)

    def train(index):
        wrapped = DDP(models[index], process_group=groups[index])
        for count in (1, 5) if index else (5,):
            if index and rank == 0:
                begun.wait(60)
            fit_heads(wrapped, rank + 10 * index, count, 0.01)
            if index:
                ended.set()
        return state(wrapped)

    return in_threads(train)


def wrapped_while_another_trains(rank, size):
    """The second model comes in the middle of a step of the first one, in another step on each rank."""
    groups, models = own_groups(size), [certain(0), two(1)]

    def train(index):
        time.sleep(0.3 * index * (rank + 1))
        wrapped = DDP(models[index], process_group=groups[index])
        for x, _ in steps(torch.optim.SGD(wrapped.parameters(), 0.1), rank + 10 * index, 200 - 180 * index):
            outputs = wrapped(x) if index else [wrapped(x, other=True)]
            sum(each.pow(2).mean() for each in outputs).backward()
        return state(wrapped)

    return in_threads(train)


def accumulation_in_two_threads(rank, size):
    """Micro-batches under no_sync, with the flag that says no, where DDP alone decides."""
    groups, models = own_groups(size), [certain(seed) for seed in range(2)]

    def train(index):
        wrapped = DDP(models[index], process_group=groups[index], find_unused_parameters=False)
        optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
        for step, (x, _) in enumerate(batches(rank + 10 * index, 12)):
            with contextlib.nullcontext() if step % 3 == 2 else wrapped.no_sync():
                wrapped(x, other=True).pow(2).mean().backward()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        return state(wrapped)

    return in_threads(train)


def pairs_in_two_threads(rank, size):
    """Each thread trains a generator against a critic; one thread is much slower."""
    groups = own_groups(size)
    models = [(certain(seed), nn.Linear(2, 1)) for seed in range(2)]

    def train(index):
        maker, critic = (DDP(each, process_group=groups[index]) for each in models[index])
        steps = [torch.optim.SGD(each.parameters(), 0.05) for each in (maker, critic)]
        for x, y in batches(rank + 10 * index, 8):
            time.sleep(0.1 * index)
            steps[1].zero_grad()
            (critic(maker(x, other=True).detach()) - critic(y)).mean().backward()
            steps[1].step()
            steps[0].zero_grad()
            critic(maker(x, other=True)).mean().backward()
            steps[0].step()
        return state(maker), state(critic)

    return in_threads(train)


def another_model_in_the_background(rank, size):
    """A thread trains a model that is under no DDP, and calls backward in the middle of the other one's."""
    stop, side = threading.Event(), nn.Linear(4, 4)
    wrapped = DDP(certain(0))

    def train():
        while not stop.is_set():
            side(torch.ones(1, 4)).sum().backward()
            time.sleep(0.001)

    worker = threading.Thread(target=train)
    worker.start()
    fit(wrapped, rank, steps=60, other=True)
    stop.set()
    worker.join()
    return state(wrapped)


def forward_here_and_backward_there(rank, size):
    """One thread makes forwards, another one their backwards."""
    wrapped, losses = DDP(certain(0)), queue.Queue()
    optimizer, ended = torch.optim.SGD(wrapped.parameters(), 0.1), threading.Event()

    def train():
        while (loss := losses.get()) is not None:
            loss.backward()
            ended.set()

    worker = threading.Thread(target=train)
    worker.start()
    for x, _ in batches(rank, 10):
        ended.clear()
        losses.put(wrapped(x, other=True).pow(2).mean())
        ended.wait()
        optimizer.step()
        optimizer.zero_grad()
    losses.put(None)
    worker.join()
    return state(wrapped)


script("threads", "forks_after_logging", fresh=True, ranks=1)
script("threads", "exit_functions_in_order")
script("threads", "join_all_at_the_end", fresh=True)
